"""Libraries say nothing about themselves at import; our warnings, errors and what comes later are heard."""

from __future__ import annotations

import logging
import warnings

import pytest
from run_code import run_code

from snugfit.errors import SnugfitWarning
from snugfit.library_imports import TALKATIVE, importing

IMPORTS = {
    "adapters": "from snugfit.techniques.adapter.layers import load_peft; load_peft()",
    "nf4": "from snugfit.techniques.packed_weight import table_of_scales; table_of_scales()",
    "adamw4bit": "from snugfit.techniques.low_bit_optimizer.apply import LowBitAdamW; LowBitAdamW('adamw4bit').load()",
    "adamw8bit": "from snugfit.techniques.low_bit_optimizer.apply import LowBitAdamW; LowBitAdamW('adamw8bit').load()",
    "transformers": "from snugfit.workloads.hf import _transformers; _transformers()",
}


@pytest.mark.parametrize("name", IMPORTS)
def test_nothing_is_said_at_import(name):
    done = run_code(IMPORTS[name])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_errors_and_our_warnings_are_heard(caplog):
    with pytest.warns(SnugfitWarning, match="ours"), importing():
        warnings.warn("ours", SnugfitWarning, stacklevel=1)
        warnings.warn("theirs", DeprecationWarning, stacklevel=1)
        for name in TALKATIVE:
            logging.getLogger(name + ".inner").warning("small talk")
            logging.getLogger(name).error("trouble")
    assert [record.message for record in caplog.records] == ["trouble"] * len(TALKATIVE)


def test_all_is_as_before_afterwards(caplog):
    before = [logging.getLogger(name).level for name in TALKATIVE]
    with pytest.raises(ImportError), importing():
        raise ImportError
    assert [logging.getLogger(name).level for name in TALKATIVE] == before
    with pytest.warns(DeprecationWarning):
        warnings.warn("theirs", DeprecationWarning, stacklevel=1)
