"""Head and loss by pieces: the loss and every gradient of plain cross entropy, on odd shapes."""

import pytest
import torch
import torch.nn.functional as F

from snugfit.techniques.loss_impl import linear_cross_entropy as chunked
from snugfit.techniques.loss_impl.linear_cross_entropy import LogitStep, Settings, linear_cross_entropy, piece_count

WORDS, WIDTH = 331, 6
SHAPES = {
    "pieces do not divide": (7, "some"),
    "one token": (1, "none"),
    "all ignored but one": (5, "but one"),
    "all ignored": (5, "all"),
}


def labels_for(tokens, ignored):
    labels = torch.randint(0, WORDS, (tokens,))
    if ignored == "some":
        labels[::3] = -100
    elif ignored == "but one":
        labels[1:] = -100
    elif ignored == "all":
        labels[:] = -100
    return labels


def compare(labels, *, bias=True, smoothing=0.0, cap=None, reduction="mean", frozen_head=False):
    """Returns loss and gradients, plain and by pieces."""
    hidden = torch.randn(len(labels), WIDTH, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(WORDS, WIDTH, dtype=torch.float64, requires_grad=not frozen_head)
    offset = torch.randn(WORDS, dtype=torch.float64, requires_grad=not frozen_head) if bias else None
    logits = F.linear(hidden, weight, offset)
    steps = ()
    if cap is not None:
        logits = torch.tanh(logits / cap) * cap
        steps = (LogitStep("divide", cap), LogitStep("tanh"), LogitStep("multiply", cap))
    plain = F.cross_entropy(logits, labels, reduction=reduction, label_smoothing=smoothing)
    settings = Settings(steps=steps, compute_dtype=torch.float64, label_smoothing=smoothing)
    ours = linear_cross_entropy(hidden, weight, offset, labels, reduction=reduction, settings=settings)
    trained = [tensor for tensor in (hidden, weight, offset) if tensor is not None and tensor.requires_grad]
    upstream = torch.randn_like(plain)
    return (
        [plain, *torch.autograd.grad(plain, trained, upstream)],
        [ours, *torch.autograd.grad(ours, trained, upstream)],
    )


def check(pair):
    for plain, ours in zip(*pair, strict=True):
        torch.testing.assert_close(ours, plain, rtol=0, atol=1e-10, equal_nan=True)


@pytest.fixture(params=["torch's own", "by pieces"])
def way(request, monkeypatch):
    if request.param == "by pieces":
        monkeypatch.setattr(chunked, "torchs_own_is_right", lambda *args: False)
    elif not hasattr(torch.nn, "LinearCrossEntropyOptions"):
        pytest.skip("this torch has no linear cross entropy of its own")


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_matches_plain_cross_entropy(way, shape, reduction):
    torch.manual_seed(0)
    assert piece_count(torch.empty(WORDS, WIDTH)) > 1
    check(compare(labels_for(*SHAPES[shape]), reduction=reduction))


@pytest.mark.parametrize(
    "options", [{"smoothing": 0.1}, {"cap": 2.0}, {"cap": 30.0, "smoothing": 0.2}, {"bias": False}]
)
@pytest.mark.parametrize("shape", SHAPES)
def test_smoothing_and_capping(shape, options):
    torch.manual_seed(1)
    check(compare(labels_for(*SHAPES[shape]), **options))


def test_a_frozen_head_gets_no_gradient(way):
    torch.manual_seed(2)
    check(compare(labels_for(7, "some"), frozen_head=True))


def test_a_label_beyond_the_vocabulary_is_not_passed_over():
    settings = Settings(compute_dtype=torch.float64, label_smoothing=0.1)
    hidden = torch.randn(3, WIDTH, dtype=torch.float64)
    labels = torch.tensor([0, WORDS, 2])
    losses = linear_cross_entropy(
        hidden, torch.randn(WORDS, WIDTH).double(), None, labels, reduction="none", settings=settings
    )
    assert losses.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_16_bits_are_as_near_to_the_truth_as_plain_training(dtype):
    """Sums over pieces are in fp32: both are compared with fp64."""
    torch.manual_seed(3)
    hidden, weight = torch.randn(40, 16), torch.randn(2000, 16)
    labels = torch.randint(0, 2000, (40,))

    def gradients(of, number, loss):
        parts = [tensor.to(number).requires_grad_() for tensor in of]
        return [gradient.double() for gradient in torch.autograd.grad(loss(*parts), parts)]

    halves = [hidden.to(dtype), weight.to(dtype)]
    truth = gradients(halves, torch.float64, lambda h, w: F.cross_entropy(F.linear(h, w), labels))
    plain = gradients(halves, dtype, lambda h, w: F.cross_entropy(F.linear(h, w).float(), labels))
    settings = Settings(compute_dtype=dtype, steps=(LogitStep("cast", torch.float32),))
    ours = gradients(
        halves,
        dtype,
        lambda h, w: linear_cross_entropy(h, w, None, labels, reduction="mean", settings=settings),
    )
    for true, one, other in zip(truth, plain, ours, strict=True):
        assert (other - true).norm() <= 1.1 * (one - true).norm()


def test_a_scaled_loss_does_not_underflow_in_fp16():
    """The gradient of 32768 tokens' mean is below fp16's range until the loss is scaled."""
    torch.manual_seed(4)
    hidden = torch.randn(32768, 4).half().requires_grad_()
    weight = torch.randn(512, 4).half()
    labels = torch.randint(0, 512, (32768,))
    settings = Settings(compute_dtype=torch.float16, steps=(LogitStep("cast", torch.float32),))
    loss = linear_cross_entropy(hidden, weight, None, labels, reduction="mean", settings=settings)
    double = hidden.detach().double().requires_grad_()
    (true,) = torch.autograd.grad(F.cross_entropy(F.linear(double, weight.double()), labels), double)

    def error(scale):
        (gradient,) = torch.autograd.grad(loss * scale, hidden, retain_graph=True)
        return float((gradient.double() / scale - true).norm() / true.norm())

    assert 2 * error(65536) < error(1)


def test_torchs_own_is_taken_only_where_it_is_exact():
    weight, hidden = torch.randn(9, 4), torch.randn(3, 4)
    plain = Settings(compute_dtype=torch.float32)
    has = hasattr(torch.nn, "LinearCrossEntropyOptions")
    assert chunked.torchs_own_is_right(hidden, weight, None, plain) == has
    for settings in (
        Settings(compute_dtype=torch.bfloat16),
        Settings(compute_dtype=torch.float32, label_smoothing=0.1),
        Settings(compute_dtype=torch.float32, steps=(LogitStep("tanh"),)),
    ):
        assert not chunked.torchs_own_is_right(hidden, weight, None, settings)
    assert not chunked.torchs_own_is_right(hidden, weight.bfloat16(), None, plain)
