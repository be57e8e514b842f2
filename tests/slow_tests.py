"""Writes down which tests take long, so that `make test-fast` leaves them out: `make slow-tests` after tests were added.

    python tests/slow_tests.py REPORT.xml         (a report of the whole suite: pytest --junitxml REPORT.xml)

A test function belongs to the list when all of its cases together take longer than SECONDS. Tests that nobody has timed
yet are run by `make test-fast`.
"""

import sys
import xml.etree.ElementTree
from collections import Counter
from pathlib import Path

SECONDS = 0.25
LIST = Path(__file__).parent / "cpu" / "slow_tests.txt"


def main() -> None:
    taken: Counter[str] = Counter()
    for case in xml.etree.ElementTree.parse(sys.argv[1]).iter("testcase"):
        file = case.get("classname", "").removeprefix("tests.").replace(".", "/")
        taken[f"{file}.py::{case.get('name', '').partition('[')[0]}"] += float(case.get("time", 0))
    slow = sorted(name for name, seconds in taken.items() if seconds > SECONDS)
    LIST.write_text("\n".join(slow) + "\n", encoding="utf-8")
    rest = sum(seconds for name, seconds in taken.items() if seconds <= SECONDS)
    print(f"{len(slow)} of {len(taken)} functions are slow; the others take {rest:.0f} s one after the other.")


if __name__ == "__main__":
    main()
