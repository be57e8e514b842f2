"""Formulas of gradients that a real run computes in place, or by looking at values: a simulated one takes the same bytes."""

import pytest
import torch
import torch.nn.functional as F

from snugfit.fake_device.personality import Personality
from snugfit.measure.allocator_events import AllocatorEvents, warm_up
from snugfit.recording.replay import replay
from snugfit.recording.tensor_bytes import TensorBytes
from snugfit.simulator.own_step import simulate_step

ROWS, COLUMNS = 200, 80
FORMULAS = {
    "index": lambda x: x[torch.arange(60) % 7],
    "index_select": lambda x: x.index_select(0, torch.arange(60)),
    "take": lambda x: x.take(torch.arange(60)),
    "gather": lambda x: x.gather(1, torch.zeros(ROWS, 1, dtype=torch.long)),
    "gather of log_softmax": lambda x: x.log_softmax(1).gather(1, torch.zeros(ROWS, 1, dtype=torch.long)),
    "max": lambda x: x.max(1).values,
    "median": lambda x: x.median(1, keepdim=True).values,
    "topk": lambda x: x.topk(2).values,
    "sort": lambda x: x.sort().values,
    "cummax": lambda x: x.cummax(1).values,
    "logits": lambda x: F.binary_cross_entropy_with_logits(x, torch.zeros_like(x)),
    "logits, weighted": lambda x: F.binary_cross_entropy_with_logits(x, torch.zeros_like(x), weight=torch.ones(COLUMNS)),
    "logits, classes weighted": lambda x: F.binary_cross_entropy_with_logits(
        x, torch.zeros_like(x), pos_weight=torch.ones(COLUMNS)
    ),
    "logits, all weighted": lambda x: F.binary_cross_entropy_with_logits(
        x, torch.zeros_like(x), pos_weight=torch.ones(ROWS, COLUMNS), reduction="sum"
    ),
    "index_put": lambda x: x.index_put((torch.arange(30),), torch.zeros(30, COLUMNS)),
    "prod": lambda x: x.prod(1),
    "prod, kept": lambda x: x.prod(0, keepdim=True),
    "prod of all": lambda x: x.prod(),
    "cumprod": lambda x: x.cumprod(0),
    "max of all": lambda x: x.max(),
    "min of all": lambda x: x.min(),
    "median of all": lambda x: x.median(),
    "scatter": lambda x: x.scatter(1, torch.zeros(ROWS, 1, dtype=torch.long), 0.0),
}  # fmt: skip


class Weight(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(ROWS, COLUMNS))


@pytest.mark.parametrize("name", FORMULAS)
def test_a_gradient_takes_the_bytes_of_a_real_run(name):
    formula = FORMULAS[name]

    def step(model, optimizer, batch):
        (formula(model.weight * 2) * 1.5).sum().backward()
        model.weight.grad = None

    trace = simulate_step(
        step, Weight, lambda parameters: torch.optim.SGD(parameters, lr=0.1), (torch.ones(1),),
        personality=Personality(kind="cpu"),
    ).trace  # fmt: skip
    predicted = replay(trace, TensorBytes()).peak_allocated_bytes
    warm_up()  # has collected garbage, too
    events = AllocatorEvents()
    events.start()
    model = Weight()
    for _ in range(2):
        step(model, None, None)
    events.stop()
    assert abs(predicted - events.peak_bytes) <= 64


def test_a_hook_of_the_user_keeps_what_it_calls():
    found = []

    def step(model, optimizer, batch):
        doubled = model.weight * 2

        def hook(grad):
            made = torch.zeros_like(grad).index_put((torch.arange(3),), torch.ones(3, COLUMNS), accumulate=True)
            found.append(float(made.shape[0]))
            return grad + made

        doubled.register_hook(hook)
        doubled.sum().backward()
        model.weight.grad = None

    trace = simulate_step(
        step, Weight, lambda parameters: torch.optim.SGD(parameters, lr=0.1), (torch.ones(1),),
        personality=Personality(kind="cpu"),
    ).trace  # fmt: skip
    assert any(run.operator == "aten.index_put.default" for run in trace.runs)
