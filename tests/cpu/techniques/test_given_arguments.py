"""What a checkpointed block was given is what it is computed again from."""

import copy
import types

import pytest
import torch
from torch import nn

import snugfit
from snugfit import InputError


class _Overwrites(nn.Module):
    """Puts its results into the list that it was given, as HRNet's blocks do."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(2))

    def forward(self, parts, scales=None):
        for at, layer in enumerate(self.layers):
            parts[at] = torch.tanh(layer(parts[at])) * scales["by"]
            scales["by"] = scales["by"] * 2
        return parts


class _OverwritingNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(_Overwrites() for _ in range(3))

    def forward(self, x):
        parts, scales = [x, x + 1], {"by": x.new_ones(1)}
        for block in self.blocks:
            block(parts, scales=scales)  # the caller reads what the block has changed
        return parts[0] + parts[1]


@pytest.mark.parametrize("choice", ["none", "all"])
def test_blocks_that_change_their_list_are_computed_again_from_what_it_held(choice):
    torch.manual_seed(0)
    model = _OverwritingNet().double()
    reference = copy.deepcopy(model)
    batch = torch.randn(6, 8, dtype=torch.double)

    def loss(output, _):
        return output.square().mean()

    reference_loss = loss(reference(batch), None)
    reference_loss.backward()
    trainer = snugfit.prepare(
        model, snugfit.Recipe(checkpoint=choice), loss=loss, optimizer="sgd", lr=1.0, device="cpu"
    )
    assert trainer.step(batch).item() == reference_loss.item()
    for new, old in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(new.detach(), old.detach() - old.grad, rtol=1e-12, atol=1e-12)


class _InContext(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x, context):
        return x + torch.tanh(self.layer(x) + context.by)


class _ContextNet(nn.Module):
    def __init__(self, by):
        super().__init__()
        self.blocks, self.by = nn.ModuleList(_InContext() for _ in range(3)), by

    def forward(self, x):
        context = types.SimpleNamespace(by=self.by() if callable(self.by) else self.by)
        for block in self.blocks:
            x = block(x, context)
            context.by += 1  # of a tensor: in place
        return x


def _gradients(model, checkpoint):
    trainer = snugfit.prepare(
        model, snugfit.Recipe(checkpoint=checkpoint), loss=lambda output, _: output.square().mean(), optimizer="sgd",
        keep_gradients=True, device="cpu",
    )  # fmt: skip
    trainer.step(torch.linspace(-1, 1, 48, dtype=torch.double).view(6, 8))
    return [weight.grad for weight in model.parameters()]


def test_objects_that_change_between_blocks_are_put_back():
    torch.manual_seed(0)
    model = _ContextNet(0).double()
    reference = copy.deepcopy(model)
    for one, other in zip(_gradients(model, "all"), _gradients(reference, "none"), strict=True):
        assert torch.equal(one, other)


def test_a_tensor_in_an_object_that_was_written_into_is_told():
    model = _ContextNet(lambda: torch.zeros(8, dtype=torch.double)).double()
    with pytest.raises(
        InputError, match=r"block 'blocks\.\d' was given a tensor of shape \[8\] in a list, dict or object"
    ):
        _gradients(model, "all")
