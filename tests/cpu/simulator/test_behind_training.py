"""What a script computes behind the steps that were looked at."""

import pytest
from own_scripts import LOOP, TRAINS, estimated, written

from snugfit.simulator.behind_training import behind_passes, behind_training

SCRIPT = """from torch.distributed.checkpoint.state_dict import get_model_state_dict
def train(model, loader):
    for batch in loader:
        step(model, batch)
    return sum(losses)

def main():
    for epoch in range(9):
        try:
            train(model, loader)
        except KeyboardInterrupt:
            print("ended")
        evaluate(model)
    model.save("model.pt")
    if sampled:
        sample(model)
    LAST

main()
print("done")
"""
LINES = (19, 10, 4)
"""The call of `main`, that of `train`, and the step."""


@pytest.mark.parametrize("last", ["test(model)", "found = model(batch)", "for x in data: model(x)", "trainer.test()"])
def test_the_first_that_may_run_a_model_is_found(last):
    assert behind_training(SCRIPT.replace("LAST", last), LINES) == 17


@pytest.mark.parametrize(
    "last", ["print(len(losses))", "torch.save(model)", "get_model_state_dict(model)", "def later(): test(model)"]
)
def test_what_saves_or_prints_is_not(last):
    assert behind_training(SCRIPT.replace("LAST", last), LINES) is None


def test_what_is_behind_the_call_that_trains_is_found():
    assert behind_training("train()\nprint(1)\ntest()\n", [1]) == 3
    assert behind_training("train()\n", []) is None


def test_what_is_behind_a_pass_through_the_data_is_found():
    assert behind_passes(SCRIPT, LINES) == 13
    by_hand = (
        "for epoch in range(9):\n    for i in range(9):\n        step()\n    with torch.no_grad():\n        m.score()\n"
    )
    assert behind_passes(by_hand, [3]) == 4 and behind_passes(by_hand.replace("m.score", "print"), [2]) == 4
    assert behind_passes("for i in range(9):\n    step()\n    test()\n", [2]) is None  # was come to in the turn before
    assert (
        behind_passes("for i in range(9):\n    for part in parts:\n        add()\n    step()\n    test()\n", [4])
        is None
    )


BY_HAND = """
for epoch in range(2):
    for start in range(0, 640, 16):
        model(torch.randn(16, 32, device=device)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    with torch.no_grad():
        model(torch.randn(640, 32, device=device))
"""


def test_the_estimate_names_what_is_behind_a_pass_by_hand(tmp_path, capsys):
    _, found, err = estimated(capsys, written(tmp_path, TRAINS + BY_HAND))
    line = (TRAINS + BY_HAND).splitlines().index("    with torch.no_grad():") + 1
    assert found is not None and f"from line {line} on, behind a pass through its data, was not looked at" in err
    by_loader = BY_HAND.replace("range(0, 640, 16)", "torch.utils.data.DataLoader(range(640), 16)")
    assert "not looked at" not in estimated(capsys, written(tmp_path, TRAINS + by_loader))[2]


def test_the_estimate_names_its_line(tmp_path, capsys):
    tested = "with torch.no_grad():\n    print(model(torch.randn(99, 32).to(device)).shape)\n"
    _, found, err = estimated(capsys, written(tmp_path, TRAINS + LOOP + tested))
    line = len((TRAINS + LOOP).splitlines()) + 1
    assert found is not None and f"from line {line} on, behind its training, was not looked at" in err
    assert "not looked at" not in estimated(capsys, written(tmp_path, TRAINS + LOOP))[2]
    once = LOOP.replace("range(50)", "range(1)")  # comes to the test, as its loader ends early
    assert "not looked at" not in estimated(capsys, written(tmp_path, TRAINS + once + tested))[2]
