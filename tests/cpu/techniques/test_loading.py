"""The fields of a recipe that are the loader's arguments."""

import inspect
import warnings

import pytest
import torch

from snugfit.errors import SnugfitWarning
from snugfit.techniques.loading import TECHNIQUE
from snugfit.techniques.loading import apply as loading
from snugfit.workloads.loader import batches


def test_options_are_arguments_of_the_loader():
    assert set(TECHNIQUE.fields) <= set(inspect.signature(batches).parameters)


@pytest.mark.skipif(torch.cuda.is_available(), reason="with CUDA pinned memory has an effect")
def test_pinned_memory_without_cuda_warns_once():
    loading._warn_no_effect.cache_clear()
    with pytest.warns(SnugfitWarning, match="no effect here"):
        assert not loading.usable_pin_memory(True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not loading.usable_pin_memory(True)
