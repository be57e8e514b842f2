"""Torch elastic starts processes and tells of their end."""

from run_code import run_code


def test_processes_are_started_and_their_ends_are_told():
    """elastic: run_processes, Meeting, NotMetError, Asked; collectives: store_of_launcher"""
    done = run_code(
        """
import socket, sys
from snugfit.private_torch import elastic
assert issubclass(elastic.NotMetError, Exception) and elastic.Asked(2).sigval == 2
named = elastic.dynamic_rendezvous.get_method_name
assert named.__module__ == elastic.dynamic_rendezvous.__name__ and (lambda: named(1))() == "<lambda>"
there = {"name": "a", "nodes": 1, "each": 2, "timeout": 60, "stop_seconds": 60}
code = "import os, sys; os.environ['RANK'] == '1' and sys.exit(7)"
print(elastic.run_processes(["-c", "pass"], elastic.Meeting(**there, endpoint=None)))
print(elastic.run_processes(["-c", code], elastic.Meeting(**there, endpoint=None)))
code = (
    "from datetime import timedelta; from snugfit.private_torch.collectives import store_of_launcher;"
    "import os; assert store_of_launcher(timedelta(seconds=60)).add('here', 1) in (1, 2)"
)
print(elastic.run_processes(["-m", "run_code", code], elastic.Meeting(**there, endpoint=None)))
with socket.socket() as taken:
    taken.bind(("127.0.0.1", 0))
    try:
        elastic.run_processes(
            ["-c", "pass"],
            elastic.Meeting(**{**there, "nodes": 2, "timeout": 2}, endpoint="127.0.0.1:%d" % taken.getsockname()[1]),
        )
    except elastic.NotMetError as error:
        print("not met")
"""
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:4] == ["{}", "{1: 7}", "{}", "not met"]
