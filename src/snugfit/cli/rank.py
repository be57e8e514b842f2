"""`python -m snugfit.cli.rank FILE`: a call of `snugfit.train`, in one of the processes that another one has started."""

from __future__ import annotations

import sys
from pathlib import Path

from snugfit.errors import SnugfitError, TrainingStopped


def main(file: Path) -> int:
    """Trains as a file (a pickled call) says; returns the exit code. An error to be told is written beside the file."""
    import cloudpickle

    from snugfit.runs.joining import ended_by
    from snugfit.runs.launching import SAID
    from snugfit.runs.train import train

    given, named = cloudpickle.loads(file.read_bytes())
    try:
        train(*given, **named)
    except (Exception, TrainingStopped) as error:
        code = ended_by(error)
        if code is not None:
            return code
        if isinstance(error, TrainingStopped):
            return 128 + error.signal
        if not isinstance(error, SnugfitError):
            raise
        file.with_name(SAID).write_bytes(cloudpickle.dumps(error))
        return error.exit_code
    return 0


if __name__ == "__main__":
    from snugfit.runs.joining import end_at_once

    code = main(Path(sys.argv[1]))
    end_at_once(code)
    sys.exit(code)
