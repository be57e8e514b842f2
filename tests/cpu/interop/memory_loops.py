"""Training loops that do not leak, and one that does; each takes a model, an optimizer and the number of steps."""

import copy

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 256), nn.GELU(), nn.Linear(256, 8))


def loss_of(model, rows=32):
    return nn.functional.cross_entropy(model(torch.randn(rows, 64)), torch.randint(0, 8, (rows,)))


def plain(model, optimizer, steps):
    for _ in range(steps):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()


def varying_lengths(model, optimizer, steps):
    for number in range(steps):
        loss_of(model, rows=8 + number * 37 % 120).backward()
        optimizer.step()
        optimizer.zero_grad()


def stepping_in_backward(model, optimizer, steps):
    """Of the many optimizers that people make for it, one is enough here."""

    def fire(weight):
        optimizer.step()
        optimizer.zero_grad()

    hook = model[0].weight.register_post_accumulate_grad_hook(fire)
    for _ in range(steps):
        loss_of(model).backward()
    hook.remove()


def accumulated(model, optimizer, steps):
    for _ in range(steps):
        for _ in range(3):
            (loss_of(model) / 3).backward()
        optimizer.step()
        optimizer.zero_grad()


def evaluated(model, optimizer, steps):
    for number in range(steps):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        if number % 5 == 4:
            with torch.no_grad():
                predictions = torch.cat([model(torch.randn(256, 64)) for _ in range(4)])
            predictions.argmax(1).float().mean().item()


def averaged(model, optimizer, steps):
    average = copy.deepcopy(model)
    for _ in range(steps):
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            for mean, now in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(now, 0.01)


def clipped_and_scheduled(model, optimizer, steps):
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        loss_of(model).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad(set_to_none=False)


def losses_kept_as_numbers(model, optimizer, steps):
    history = []
    for _ in range(steps):
        loss = loss_of(model)
        loss.backward()
        history.append({"loss": loss.item(), "kept": loss.detach()})
        optimizer.step()
        optimizer.zero_grad()


def checkpointed(model, optimizer, steps):
    for _ in range(steps):
        rows = torch.randn(64, 64, requires_grad=True)
        checkpoint(model, rows, use_reentrant=False).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def best_weights_kept(model, optimizer, steps):
    best, least = None, float("inf")
    for _ in range(steps):
        loss = loss_of(model)
        loss.backward()
        if loss.item() < least:
            best, least = {name: value.clone() for name, value in model.state_dict().items()}, loss.item()
        optimizer.step()
        optimizer.zero_grad()
    assert best


def two_optimizers(model, optimizer, steps):
    other = nn.Linear(64, 64)
    second = torch.optim.SGD(other.parameters(), lr=1e-3, momentum=0.9)
    for number in range(steps):
        nn.functional.cross_entropy(model(other(torch.randn(32, 64))), torch.randint(0, 8, (32,))).backward()
        optimizer.step()
        if number % 5 == 0:
            second.step()
            second.zero_grad()
        optimizer.zero_grad()


QUIET = [
    plain, varying_lengths, accumulated, evaluated, averaged, clipped_and_scheduled, losses_kept_as_numbers, checkpointed,
    best_weights_kept, two_optimizers, stepping_in_backward,
]  # fmt: skip


def leaking(model, optimizer, steps):
    kept = []
    for _ in range(steps):
        rows = torch.randn(256, 64)
        kept.append(model[0](rows))
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()


def leaking_arrays(model, optimizer, steps):
    import numpy

    kept = []
    for _ in range(steps):
        kept.append(numpy.ones(100_000))
        loss_of(model).backward()
        optimizer.step()
        optimizer.zero_grad()
