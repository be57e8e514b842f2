"""`python -m snugfit.cli.rank SENT SAID`: a run, in one of the processes that another one has started."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

from snugfit.errors import SnugfitError, TrainingStopped


def main(sent: Path, said: Path) -> int:
    """Carries out the run in a file; returns the exit code.

    `said`: where the process that speaks for all leaves result or error.
    """
    import cloudpickle

    from snugfit.cli import spoken_to_a_person
    from snugfit.runs.execute import execute
    from snugfit.runs.joining import joined
    from snugfit.runs.others import ended_by
    from snugfit.runs.standing import rank_here

    config, typed = cloudpickle.loads(sent.read_bytes())
    with spoken_to_a_person() if typed else contextlib.nullcontext():
        try:
            with joined(rank_here(), device=config.request.device, rdzv=config.rdzv, rdzv_timeout=config.rdzv_timeout):
                result = execute(config)
        except (Exception, TrainingStopped) as error:
            code = ended_by(error)
            if code is not None:
                return code
            if not isinstance(error, SnugfitError | TrainingStopped):
                raise
            said.write_bytes(cloudpickle.dumps(error))
            return error.exit_code if isinstance(error, SnugfitError) else 128 + error.signal
    if result.first:
        said.write_bytes(cloudpickle.dumps(result))
    return 0


if __name__ == "__main__":
    from snugfit.runs.others import end_at_once

    code = main(*map(Path, sys.argv[1:]))
    end_at_once(code)
    sys.exit(code)
