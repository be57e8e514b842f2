"""Operators run whole on the simulated device where the real one has a kernel of its own, and in parts where it has none."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F
from run_code import run_code
from torch import nn

import snugfit
from snugfit.fake_device import own_kernels
from snugfit.fake_device.own_kernels import APART, APART_WHERE_IT_HOLDS_MORE, WHOLE, _makes_more, choice, has_own_kernel
from snugfit.measure.allocator_events import AllocatorEvents, warm_up
from snugfit.private_torch import dispatcher

SIDE = 512
CARD = "a100-40gb"
knows_cuda = pytest.mark.skipif(
    not dispatcher.knows_cuda_kernels(), reason="this build of torch has no CUDA kernels to compare with"
)


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, features):
        return self.function(features)


def step(model, optimizer, features):
    output = model(features.requires_grad_(True))
    output.backward(torch.empty_like(output))


def predicted(function, device):
    features = torch.empty(SIDE, SIDE, device="meta")
    found = snugfit.estimate(Function(function), features, step=step, optimizer=None, device=device)
    return found.peak_allocated_bytes / (SIDE * SIDE * 4)


def measured(function):
    warm_up()
    events, model = AllocatorEvents(), Function(function)
    events.start()
    for _ in range(2):
        features = torch.empty(SIDE, SIDE)
        step(model, None, features)
        del features
    events.stop()
    return events.peak_bytes / (SIDE * SIDE * 4)


# -- which operators


def overloads():
    for name in dispatcher.operator_names():
        packet, _, overload = name.removeprefix("aten::").partition(".")
        found = getattr(getattr(torch.ops.aten, packet), overload or "default", None)
        if found is not None:  # a few are registered without a schema that Python can call
            yield found


@knows_cuda
def test_every_composite_operator_with_a_kernel_of_cuda_runs_whole():
    checked = 0
    for operator in overloads():
        if dispatcher.has_kernel(operator.name(), "CUDA"):
            assert choice(operator, "cuda") == WHOLE, operator
            checked += 1
    assert checked > 1000


def test_every_composite_operator_with_a_kernel_of_the_cpu_runs_whole_there():
    checked = 0
    for operator in overloads():
        if dispatcher.has_kernel(operator.name(), "CPU"):
            assert choice(operator, "cpu") == WHOLE, operator
            checked += 1
    assert checked > 1000


@pytest.mark.parametrize("kind", ["cuda", "cpu"])
def test_every_other_composite_operator_is_taken_apart_but_views_and_those_that_choose_a_library(kind):
    for operator in overloads():
        name = operator.name()
        if has_own_kernel(name, kind) or name in own_kernels.KERNELS_TO_US:
            continue
        if dispatcher.has_kernel(name, dispatcher.IMPLICIT):
            assert choice(operator, kind) == APART, operator
        elif dispatcher.explicit_body(name) is not None:
            view = any(r.alias_info is not None and not r.alias_info.is_write for r in operator._schema.returns)
            assert choice(operator, kind) == (WHOLE if view else APART_WHERE_IT_HOLDS_MORE), operator


_TABLES = r"""
import re, torch
from snugfit.recorder import registration
from snugfit.private_torch import dispatcher
registration.register()
for name in dispatcher.operator_names():
    table = torch._C._dispatch_dump_table(name)
    rows = dict(re.findall(r"(?m)^(Autograd(?:CUDA|PrivateUse1)): .*\[(.*)\]$", table))
    print(name, len(set(rows.values())), *sorted(rows.values()))
"""

_CHOSEN_BY_US = re.compile(r"^aten::(scaled_dot_product_attention|lstm|gru|rnn_tanh|rnn_relu|prod|cumprod|_test_)")
"""Attention and recurrent layers choose their kernel by the device's type, gradients of products by values: registered one
by one, in files of their own."""


@knows_cuda
def test_autograd_takes_the_same_way_on_the_simulated_card_as_on_cuda_for_every_operator():
    """What the dispatcher itself says: kernel of autograd, or body with autograd inside."""
    done = run_code(_TABLES)
    assert done.returncode == 0, done.stderr
    rows = done.stdout.splitlines()
    assert sum("autograd kernel" in row for row in rows) > 1000
    assert [row for row in rows if row.split()[1] != "1" and not _CHOSEN_BY_US.match(row)] == []


@knows_cuda
def test_a_build_without_cuda_makes_the_same_choices(monkeypatch):
    names = [
        name
        for name in dispatcher.operator_names()
        if any(dispatcher.has_kernel(name, key) for key in (dispatcher.IMPLICIT, *dispatcher.EXPLICIT))
    ]
    with_cuda = {name for name in names if has_own_kernel(name, "cuda")}
    monkeypatch.setattr(dispatcher, "knows_cuda_kernels", lambda: False)
    without = {name for name in names if has_own_kernel(name, "cuda")}
    assert with_cuda - without == set(), "name them in own_kernels.yaml, under cuda"
    assert without - with_cuda == set(), "name them in own_kernels.yaml, under cpu"


def test_the_operators_of_the_report_have_kernels_on_cuda():
    for name in ("aten::silu_backward", "aten::mish_backward", "aten::_fused_rms_norm"):
        if name in dispatcher.operator_names():
            assert has_own_kernel(name, "cuda"), name
            assert name in own_kernels.told_to_the_dispatcher()


def test_bodies_that_make_only_their_results_stay_whole():
    features = torch.empty(8, 8, device="meta")
    aten = torch.ops.aten
    for operator, args in (
        (aten.clone.default, (features,)),
        (aten._to_copy.default, (features,)),
        (aten.ones_like.default, (features,)),
        (aten.mul.Scalar, (features, 2.0)),
        (aten.embedding.default, (features, torch.empty(3, dtype=torch.long, device="meta"))),
    ):
        assert not _makes_more(operator, "cuda", args, {}), operator


def test_bodies_that_make_more_are_found_also_inside_out_variants_and_each_other():
    features = torch.empty(8, 8, device="meta")
    aten = torch.ops.aten
    for operator, args in (
        (aten.logsumexp.default, (features, [1])),  # by way of logsumexp.out
        (aten.binary_cross_entropy_with_logits.default, (features, features)),
        (aten.soft_margin_loss_backward.default, (features[0, 0], features, features, 1)),
        (aten.dist.default, (features, features)),
        (aten._safe_softmax.default, (features, 1)),
    ):
        assert _makes_more(operator, "cuda", args, {}), operator


# -- what that means in bytes


@pytest.mark.parametrize(
    ("function", "tensors"),
    [
        # derivatives.yaml: the backward of each takes the gradient and the input (or the result) and makes one tensor.
        (F.gelu, 4),
        (F.silu, 4),
        (F.mish, 4),
        (F.relu, 4),
        (F.hardswish, 4),
        (F.softplus, 4),
        (F.elu, 4),
        (F.celu, 4),
        (F.hardtanh, 4),
        (torch.tanh, 4),
        (F.glu, 3),  # input and its gradient, output and its gradient of half the size each
        (lambda x: F.silu(x) * x, 6),  # SwiGLU: x, silu(x), product, its gradient, two gradients
        (lambda x: F.silu(x[:, : SIDE // 2]) * x[:, SIDE // 2 :], 4.5),
        (lambda x: F.rms_norm(x, (SIDE,)), 4),
        (lambda x: F.rms_norm(x, (SIDE,), torch.ones(SIDE, device=x.device)), 4),
        (lambda x: F.layer_norm(x, (SIDE,)), 4),
    ],
)
def test_peak_on_a_card_is_that_of_the_formulas_of_autograd(function, tensors):
    assert predicted(function, CARD) == pytest.approx(tensors, rel=0.01)


def target(x):
    return torch.empty_like(x).detach()


def attended(x):
    parts = x.view(4, 8, -1, 32)[:, :, :128]
    mask = torch.ones(128, 128, dtype=torch.bool, device=x.device)
    return F.scaled_dot_product_attention(parts, parts, parts, attn_mask=mask)


@pytest.mark.parametrize(
    "function",
    [
        F.silu,
        F.mish,
        F.logsigmoid,
        lambda x: F.rms_norm(x, (SIDE,)),
        lambda x: F.binary_cross_entropy_with_logits(x, target(x)),
        lambda x: F.soft_margin_loss(x, target(x)),
        lambda x: torch.logsumexp(x, -1),
        lambda x: torch.dist(x, target(x)),
        lambda x: F.channel_shuffle(x.view(16, 16, 32, 32), 4),
        lambda x: F.pixel_shuffle(x.view(16, 16, 32, 32), 2),
        lambda x: torch.nan_to_num(x),
    ],
)
def test_peak_on_cpu_is_the_measured_one(function):
    assert predicted(function, "cpu") == pytest.approx(measured(function), rel=0.01)


@pytest.mark.parametrize("loss", [F.mse_loss, F.smooth_l1_loss, F.huber_loss])
def test_losses_on_a_card_hold_the_loss_of_every_element_until_they_are_added_up(loss):
    def no_backward(model, optimizer, features):
        model(features)

    features = torch.empty(SIDE, SIDE, device="meta")
    model = Function(lambda x: loss(x, target(x)))
    found = snugfit.estimate(model, features, step=no_backward, optimizer=None, device=CARD)
    assert found.peak_allocated_bytes / (SIDE * SIDE * 4) == pytest.approx(3, rel=0.01)


def test_a_norm_saves_what_cuda_saves():
    """RMSNorm on CUDA is one node that keeps one float32 for each row, not the squares and products of its definition."""

    class Norms(nn.Module):
        def __init__(self):
            super().__init__()
            self.norms = nn.Sequential(*(nn.RMSNorm(SIDE) for _ in range(8)))

        def forward(self, x):
            return self.norms(x)

    features = torch.empty(SIDE, SIDE, device="meta")
    found = snugfit.estimate(Norms(), features, step=step, optimizer=None, device=CARD)
    # The input of each, the last output and its gradient, one new gradient; weights and rows are small.
    assert found.peak_allocated_bytes / (SIDE * SIDE * 4) == pytest.approx(8 + 3, rel=0.03)
