"""Options: those that nothing has taken are refused, all at once, and what means something is said."""

import pytest

from snugfit.errors import InputError
from snugfit.workloads.options import BatchOptions, refuse


def refused(given, meant, what="a batch"):
    with pytest.raises(InputError) as caught:
        refuse(given, meant, what)
    return str(caught.value)


def test_all_that_have_no_meaning_are_named():
    given = {"image_size": 8, "frames": 3, "seq_len": None, "packing": False}
    assert refused(given, ()) == "--image-size, --frames has no meaning for a batch. Leave it out."
    assert refused(given, ("frames", "seq_len")).endswith("Leave it out, or give --seq-len.")
    refuse(given, ("image_size", "frames"), "a batch")


def test_what_a_batch_takes_has_a_meaning():
    options = BatchOptions(batch_size=2, image_size=8, frames=3)
    assert options.take("image_size") == 8 and options.take("seq_len") is None
    with pytest.raises(InputError, match=r"^--frames has no meaning for x\. Leave it out, or give --seq-len\.$"):
        options.check("x")
    options.take("frames")
    options.check("x")


def test_a_batch_that_no_machine_holds():
    with pytest.raises(InputError, match=r"--batch-size 4, --image-size 100000000: such a batch"):
        BatchOptions(batch_size=4, image_size=10**8)
