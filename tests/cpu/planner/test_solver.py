"""The planner's solver writes nothing: standard output belongs to `--json`."""

from run_code import run_code

CODE = """
from snugfit.planner.solver import silent_solver

solver = silent_solver()
taken = [solver.addBinary(obj=cost) for cost in (3.0, 2.0, 2.5)]
solver.addConstr(solver.qsum(taken) >= 2)
solver.run()
assert solver.getSolution().col_value == [0.0, 1.0, 1.0]
"""


def test_nothing_on_standard_output():
    """In a process of its own: HiGHS says its name once in a process."""
    done = run_code(CODE, without_torch=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "" and done.stderr == ""
