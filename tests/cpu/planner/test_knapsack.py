"""The knapsack of a few blocks, and that its solver writes nothing: standard output belongs to `--json`."""

from run_code import run_code

from snugfit.planner.knapsack import cheapest

CODE = """
from snugfit.planner.knapsack import cheapest

mib = 2.0**20
limits = [({(0, block): -mib for block in range(3)}, -2 * mib)]
assert cheapest([[1.0, 0.6, 0.8]], limits) == {(0, 1), (0, 2)}
"""
MIB = 2.0**20


def test_nothing_on_standard_output():
    """In a process of its own: HiGHS says its name once in a process."""
    done = run_code(CODE, without_torch=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and done.stderr == ""


def test_a_block_is_treated_once_and_what_cannot_fit_is_none():
    both = {(number, block): -MIB for number in range(2) for block in range(2)}
    assert cheapest([[1.0, 1.0], [0.5, 0.9]], [(both, -2 * MIB)]) == {(1, 0), (1, 1)}
    assert cheapest([[1.0, 1.0], [0.5, 0.9]], [(both, -3 * MIB)]) is None
    assert cheapest([[1.0, 1.0]], [({}, -MIB)]) is None
    assert cheapest([[1.0, 1.0]], [({}, MIB)]) == set()
