"""`python -m snugfit`: the same as the `snugfit` command."""

import sys

from snugfit.cli import main

if __name__ == "__main__":
    sys.exit(main())
