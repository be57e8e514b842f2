"""Notebooks: results show their cards, and a cell that is a training script is estimated as a file would be."""

import json
import sys
from pathlib import Path

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

import snugfit
from snugfit.cli import main
from snugfit.planner.budgets import BudgetAnswer
from snugfit.report.notebook import card_html, in_notebook

CELL = """
import torch
from torch import nn
from width import WIDTH
model = nn.Linear(64, WIDTH).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(100):
    model(torch.randn(256, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.fixture
def notebook(tmp_path, monkeypatch):
    """What runs the cells of a notebook, in a folder of its own."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # the shell puts its own there
    (tmp_path / "notebook").mkdir()
    (tmp_path / "notebook" / "width.py").write_text("WIDTH = 512\n")
    monkeypatch.chdir(tmp_path / "notebook")
    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "snugfit")
    yield shell
    shell.history_manager.end_session()
    InteractiveShell.clear_instance()


def test_a_cell_is_estimated_as_its_file_would_be(notebook, capsys):
    found = notebook.run_cell_magic("estimate", "--device rtx-4090", CELL)
    assert [path.name for path in Path().glob("*.py")] == ["width.py"]
    Path("train.py").write_text(CELL)
    capsys.readouterr()
    assert main(["estimate", "--device", "rtx-4090", "--json", "train.py"]) == 0
    of_file = json.loads(capsys.readouterr().out)
    assert "cell.py on rtx-4090" in str(found)
    assert found.peak_allocated_bytes == of_file["peak_allocated_bytes"] > 256 * 512 * 4
    assert found._repr_html_().startswith("<pre") and "<b>What lives at the peak</b>" in found._repr_html_()


@pytest.mark.parametrize(
    ("line", "cell", "said"),
    [
        ("--device rtx-9999", "x = 1", "device 'rtx-9999' is unknown"),
        ("--budget 8GiB", "x = 1", "unknown option '--budget'"),
        ("--device cpu", "x = model", "name 'model' is not defined"),
    ],
)
def test_a_wrong_cell_is_one_message(notebook, capsys, line, cell, said):
    assert notebook.run_cell_magic("estimate", line, cell) is None
    assert said in capsys.readouterr().err


def test_a_cell_that_asks_for_names_of_others_is_estimated_behind_them(notebook, capsys):
    trains = CELL.index("for step")
    for cell in (
        "raise ValueError('a mistake'",
        "raise ValueError('a mistake')",
        CELL[:trains],
        "print('no step yet')",
    ):
        on_host = cell.replace(".cuda()", "").replace("from width import WIDTH", "WIDTH = 512")  # there is no card
        notebook.run_cell(on_host, store_history=True)
    cell = f"model = model.cuda()\n{CELL[trains:]}"
    notebook.user_ns["In"].append(f"%%estimate --device rtx-4090\n{cell}")  # as a front end does
    found = notebook.run_cell_magic("estimate", "--device rtx-4090", cell)
    assert found is not None, capsys.readouterr().err
    assert not list(Path().glob("cell*")) and notebook.user_ns["model"].weight.device.type == "cpu"
    whole = notebook.run_cell_magic("estimate", "--device rtx-4090", CELL)
    assert found.peak_allocated_bytes == whole.peak_allocated_bytes
    assert any("cell.ipynb[cell 5]" in row.line for row in found.sources)


def test_a_cell_is_planned_with_lines_for_it(notebook, capsys):
    trains = CELL.index("optimizer")
    notebook.run_cell("import torch\nfrom torch import nn\nmodel = nn.Linear(64, 512)", store_history=True)
    notebook.user_ns["In"].append("%%plan ...")  # as a front end does
    found = notebook.run_cell_magic("plan", "--device rtx-4090 --budget 20GiB", f"model.cuda()\n{CELL[trains:]}")
    assert found is not None, capsys.readouterr().err
    assert "To paste (into the cells by hand)" in str(found) and not list(Path().glob("cell*"))
    assert found.diff.startswith("--- cell.ipynb[cell 2]\n") and ", fused=True)" in found.diff
    assert notebook.run_cell_magic("plan", "--device rtx-4090 --budget lots", CELL) is None
    assert "budget 'lots' is not understood" in capsys.readouterr().err


def test_results_show_their_cards():
    for kind in (snugfit.Estimate, snugfit.Plan, snugfit.TrainResult, BudgetAnswer):
        assert kind._repr_html_ and kind.__str__ is not object.__str__
    shown = card_html("model <a> & more\n  time  1 s\n\nCards\n  x")
    assert "<b>model &lt;a&gt; &amp; more</b>\n  time  1 s\n\n<b>Cards</b>\n  x</pre>" in shown


def test_a_notebook_is_told_from_a_console(notebook, monkeypatch):
    assert not in_notebook()
    monkeypatch.setattr(notebook, "config", Config(IPKernelApp={}))
    assert in_notebook()
