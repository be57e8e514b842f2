"""The most that tensors take in a script, as its user can see it."""

import contextlib
import os
from pathlib import Path

from snugfit.measure.meter import meter_for
from snugfit.private_torch.gloo import letting_go
from snugfit.recorder.registration import is_simulation


@contextlib.contextmanager
def measured():
    """Gives a function to call after each step; writes the bytes to `bytes-RANK`."""
    if is_simulation():
        yield lambda: None
        return
    meter, done = meter_for("cpu"), 0

    def after_step():
        nonlocal done
        done += 1
        meter.after_step(done)

    meter.start()
    with letting_go():
        yield after_step
    Path(f"bytes-{os.environ['RANK']}").write_text(str(meter.result(0)["peak_tensor_bytes"]))
