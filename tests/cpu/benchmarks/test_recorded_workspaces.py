"""What a convolution takes and gives back at once is its workspace; what it returns is not."""

import json

import pytest
from benchmarks import more_memory, published_page, recorded_workspaces, results_file

DOCS = results_file.RESULTS.parents[1] / "docs"


def operator(name, begin, seconds):
    return {"name": name, "ts": begin, "dur": seconds}


def memory(at, size, card=True):
    return {"name": "[memory]", "ts": at, "args": {"Device Type": int(card), "Bytes": size}}


def test_workspaces_are_told_from_results_and_from_other_operators():
    trace = {
        "traceEvents": [
            operator("aten::cudnn_convolution", 10, 5),
            operator("aten::cudnn_convolution_backward_weight", 20, 5),
            operator("aten::relu", 30, 5),
            memory(24, -40),  # events may stand in any order
            memory(11, 100),
            memory(12, 70),
            memory(12, 5, card=False),
            memory(13, -70),
            memory(21, 30),
            memory(23, 40),
            memory(31, 60),
            memory(32, -60),
        ]
    }
    sizes, inside = recorded_workspaces.workspaces(trace)
    assert sizes == [100, 70, -70, 30, 40, -40, 60, -60]
    assert inside == {1: "forward", 2: "forward", 4: "gradient of the weights", 5: "gradient of the weights"}
    assert recorded_workspaces.rise(sizes) == 190
    assert recorded_workspaces.rise([size for index, size in enumerate(sizes) if index not in inside]) == 190
    assert recorded_workspaces.rise([5, -10, 3]) == 5


def test_errors_are_summed_up_with_their_signs():
    found = more_memory.summary([{"off": -0.1}, {"off": 0.0}, {"off": 0.3}, {"error": "it broke"}])
    assert found == {
        "rows": 3, "median": 0.0, "median_absolute": pytest.approx(0.1), "worst_under": -0.1, "worst_over": 0.3,
    }  # fmt: skip


def test_the_page_in_the_repository_is_the_one_that_its_results_make():
    results = json.loads((results_file.RESULTS / "published_memory.json").read_text(encoding="utf-8"))
    assert (DOCS / "published.md").read_text(encoding="utf-8") == published_page.published_page(results), (
        "run make docs"
    )
