"""Tensors of files, made while operators are not run."""

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit.attributes import replaced
from snugfit.private_torch.fake_tensors import new_fake_mode
from snugfit.private_torch.real_tensors import read_for_real, whole_storage


class _Seen(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operators.append(func.__name__)
        return func(*args, **(kwargs or {}))


def test_tensors_of_a_file_have_their_values(tmp_path):
    """read_for_real, whole_storage"""
    both = torch.arange(12.0)
    torch.save({"some": both[3:9].view(2, 3), "all": both}, tmp_path / "file.pt")
    with _Seen() as seen, replaced(read_for_real()):
        found = torch.load(tmp_path / "file.pt")
    assert any(name.startswith("set_") for name in seen.operators)  # by whom the host's bytes are counted
    assert found["some"].tolist() == [[3.0, 4.0, 5.0], [6.0, 7.0, 8.0]]
    storages = [one.untyped_storage()._cdata for one in (found["some"], found["all"], both)]
    assert storages[0] == storages[1] != storages[2]
    with new_fake_mode():
        assert whole_storage(found["some"]).tolist() == both.tolist()
