"""Data sources as tests open them."""

import pytest

from snugfit.errors import InputError
from snugfit.workloads.data import open_data


def opened(spec, **settings):
    return open_data(spec, **{"image_size": None, "channels": 3, "num_classes": None, "seed": 0, **settings})


def refused(spec, **settings):
    with pytest.raises(InputError) as caught:
        opened(spec, **settings)
    return str(caught.value)


def parts(data):
    return data.train, data.validation, data.test
