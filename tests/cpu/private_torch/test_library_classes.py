"""Fake tensors that are of a library's class at the same time."""

import copy
from unittest import mock

import torch
from backend_in_a_worker import fake_pair
from torch.nn.parameter import is_lazy

from snugfit.private_torch import fake_tensors, library_classes


def test_fake_tensors_are_of_a_library_s_class_too():
    """of_library, FAKES, replace_data"""

    class Packed(torch.nn.Parameter):
        def __new__(cls, data, scale):
            self = torch.Tensor._make_subclass(cls, data, False)
            self.scale = scale
            return self

        def told(self):
            return self.scale

    _, factory = fake_pair()
    data = factory.empty((2, 3), (3, 1), torch.float32, torch.device("cpu"))
    assert type(library_classes.of_library(Packed, torch.ones(2))) is Packed
    packed = library_classes.of_library(Packed, data)
    packed.scale = 2
    assert (
        isinstance(packed, Packed)
        and isinstance(packed, fake_tensors.FakeTensor)
        and type(packed) in fake_tensors.FAKES
    )
    assert packed.untyped_storage()._cdata == data.untyped_storage()._cdata and packed.stride() == (3, 1)
    assert type(packed + 1) is fake_tensors.FakeTensor
    library_classes.replace_data(packed, factory.empty((4,), (1,), torch.uint8, torch.device("cuda", 0)))
    assert (packed.device.type, packed.dtype, packed.told()) == ("cuda", torch.uint8, 2)
    lazy = library_classes.of_library(
        torch.nn.UninitializedParameter, factory.empty((0,), (1,), torch.float32, data.device)
    )
    moved = lazy.to(torch.float64)
    assert is_lazy(moved) and moved.dtype == torch.float64
    moved.materialize((5, 2))
    assert isinstance(moved, torch.nn.Parameter) and not is_lazy(moved) and moved.shape == (5, 2)


class Image(torch.Tensor):
    """A class of a library, which copies all attributes of what a tensor was made of, as those of MONAI and fastai do."""

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        result = super().__torch_function__(func, types, args, kwargs or {})
        if isinstance(result, cls):
            result.__dict__ = args[0].__dict__
        return result


def test_fake_tensors_are_seen_as_of_a_class():
    """as_library, as_plain, SEEN_AS"""
    _, factory = fake_pair()
    data = factory.empty((2, 3), (3, 1), torch.float32, torch.device("cpu"))
    assert type(library_classes.as_library(torch.ones(2), Image)) is Image
    with mock.patch.object(torch.Tensor, "as_subclass", library_classes.as_library):
        image = library_classes.as_library(data.requires_grad_(), Image)
        image.label = "a"
        assert isinstance(image, Image) and type(image) in fake_tensors.FAKES & library_classes.SEEN_AS
        assert image.grad_fn is not None and image.untyped_storage()._cdata == data.untyped_storage()._cdata
        assert isinstance(image * 2, Image) and (image * 2).label == "a"
        moved = library_classes.as_library(factory.empty((2, 3), (3, 1), torch.float32, torch.device("cuda", 0)), Image)
        moved.__dict__ = image.__dict__
        assert (type(moved), moved.device.type, moved.label) == (type(image), "cuda", "a")
        moved.__dict__.update(label="b")
        assert (moved.label, moved.__dict__, copy.deepcopy(vars(moved))) == ("b", {"label": "b"}, {"label": "b"})
        plain = moved.as_subclass(torch.Tensor)
        assert not isinstance(plain, Image) and isinstance(plain, fake_tensors.FakeTensor)
        plain.__dict__ = image.__dict__
        assert plain.device.type == "cuda"
    real = torch.ones(2).as_subclass(Image)
    with library_classes.as_plain([image, real, data]):
        assert [type(one) for one in (image, real, data)] == [fake_tensors.FakeTensor, torch.Tensor, type(data)]
    assert isinstance(image, Image) and type(real) is Image
