"""`python -m benchmarks.report`."""

from benchmarks.report import main

main()
