"""Early stopping and the best weights with two processes: the step and the weights of one, and the same when resumed."""

import pytest
from several_processes import MODEL, RUN, alone, both, difference

JUDGED = [
    *RUN, "--max-steps", "60", "--eval-every", "2", "--optimizer", "sgd", "--lr", "0.3", "--seed", "1", "--patience", "4",
    "--keep-best", "accuracy",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with the run of one process."""
    folder = tmp_path_factory.mktemp("best")
    (folder / "model.py").write_text(MODEL)
    whole = alone(folder, *JUDGED, "--run-dir", "one")
    assert 2 < whole["best"]["step"] < whole["steps"] < 60
    return folder, whole


def of(document):
    return document["best"]["step"], document["steps"], document["stopped_early"]


@pytest.mark.parametrize("shard", ["full", "none"])
def test_two_processes_stop_at_the_step_of_one_and_keep_its_weights(folder, shard):
    folder, whole = folder
    codes, said, found = both(folder, *JUDGED, "--shard", shard, "--run-dir", shard)
    assert codes == [0, 0], said
    assert of(found) == of(whole)
    assert found["best"]["value"] == pytest.approx(whole["best"]["value"], abs=1e-6)
    assert difference(folder / "one", folder / shard) < 1e-6
    kept = [path.name for path in (folder / shard / "best").iterdir()]
    assert kept == [f"step-{found['best']['step']:08d}.safetensors"]


def test_stopped_and_resumed_in_another_number_of_processes_it_is_the_same_run(folder):
    folder, whole = folder
    early = ["--max-steps", whole["best"]["step"] + 2]
    assert both(folder, *JUDGED, "--shard", "full", *early, "--run-dir", "two")[0] == [0, 0]
    resume = ["train", "--run-dir", "two", "--resume", "--max-steps"]
    assert both(folder, *resume, whole["best"]["step"] + 4)[2]["best"]["evaluations_since"] == 2
    assert of(alone(folder, *resume, "60", "--gpus", "1")) == of(whole)
    assert difference(folder / "one", folder / "two") < 1e-6
