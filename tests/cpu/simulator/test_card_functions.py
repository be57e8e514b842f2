"""Scripts ask the card a lot that has nothing to do with memory: limits, statistics, histories, types of older torch."""

import textwrap

import pytest
from own_scripts import LOOP, TRAINS, estimated, written

ASKS = """
torch.cuda.set_per_process_memory_fraction(0.9)
assert torch.cuda.get_per_process_memory_fraction() == 1.0
torch.cuda.seed_all(); assert torch.cuda.initial_seed() == 0
torch.cuda.memory._record_memory_history(max_entries=1000)
torch.cuda.profiler.start(); torch.cuda.profiler.stop()
before = torch.cuda.memory_stats()
held = torch.zeros(1000, 1000, device=device)
after = torch.cuda.memory_stats()
assert 4_000_000 <= after["allocated_bytes.all.current"] - before["allocated_bytes.all.current"] <= 4_000_512
assert after["allocated_bytes.all.peak"] >= torch.cuda.memory.memory_allocated() and after["num_ooms"] == 0
assert torch.accelerator.memory_stats().keys()
assert getattr(torch.accelerator, "get_memory_info", torch.cuda.mem_get_info)() == torch.cuda.mem_get_info()
print(torch.cuda.memory_summary(abbreviated=True), torch.cuda.utilization(), torch.cuda.get_device_properties(0).uuid)
torch.cuda.memory._dump_snapshot("memory.pickle")
most = torch.cuda.max_memory_allocated()
large = torch.zeros(most, device=device)
del large
assert torch.cuda.memory_reserved() == torch.cuda.max_memory_allocated()
assert torch.cuda.memory_reserved() == torch.cuda.memory_stats()["reserved_bytes.all.current"]
assert torch.cuda.memory_reserved() > most * 4 > torch.cuda.memory_allocated()
torch.cuda.empty_cache()
assert torch.cuda.memory_reserved() == torch.cuda.memory_allocated()
card = torch.cuda.get_device_properties(0)
assert card.name == torch.cuda.get_device_name() == "NVIDIA GeForce RTX 4090" and 23 < card.total_memory / 2**30 < 24
assert torch.cuda.mem_get_info()[0] > 2**39  # a model that does not fit is seen whole
torch.cuda.reset_accumulated_memory_stats()
"""
OLD = """
import numpy
Tensor = torch.cuda.FloatTensor
made = [Tensor(2, 3).fill_(1.0), Tensor(torch.Size([2, 3])), Tensor([[1, 2, 3], [4, 5, 6]]), Tensor(numpy.ones((2, 3)))]
made += [torch.zeros(2, 3).type(Tensor), torch.zeros(2, 3).type("torch.cuda.FloatTensor"), Tensor(torch.ones(2, 3))]
for one in made:
    assert isinstance(one, Tensor) and one.is_cuda and one.shape == (2, 3) and one.dtype is torch.float32, one
assert made[2].sum().item() == 21 and torch.cuda.LongTensor([3]).item() == 3 and Tensor().numel() == 0
assert not isinstance(torch.zeros(2), Tensor) and torch.zeros(2).type(torch.float64).dtype is torch.float64
assert torch.zeros(2).type("torch.DoubleTensor").dtype is torch.float64
torch.set_default_tensor_type("torch.cuda.FloatTensor")
assert torch.zeros(2).is_cuda and nn.Linear(2, 2).weight.is_cuda
assert all(one.is_cuda for one in (torch.Tensor([1.0]), torch.Tensor(numpy.ones(3)), torch.Tensor(2, 3), torch.tensor(1)))
torch.set_default_tensor_type(torch.FloatTensor)
assert not torch.zeros(2).is_cuda and not torch.Tensor([1.0]).is_cuda
torch.set_default_device("cuda")
assert torch.tensor([1.0]).is_cuda and torch.as_tensor(numpy.ones(3)).is_cuda and not torch.Tensor([1.0]).is_cuda
torch.set_default_device("cpu")
assert not torch.tensor([1.0]).is_cuda
"""


@pytest.mark.parametrize("lines", [ASKS, OLD], ids=["functions", "types"])
def test_a_card_answers(tmp_path, capsys, lines):
    code, estimate, err = estimated(capsys, written(tmp_path, TRAINS + textwrap.dedent(lines) + LOOP))
    assert code == 0 and estimate is not None, err


CTC = """
model = nn.Linear(32, 32).to(device)
optimizer = torch.optim.AdamW(model.parameters())
labels, times, lengths = torch.randint(1, 32, (16, 10)), torch.full((16,), 50), torch.full((16,), 10)
for _ in range(4):
    log_probs = model(torch.randn(50, 16, 32, device=device)).log_softmax(-1)
    loss = LOSS
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize(
    "loss",
    [
        "nn.CTCLoss()(log_probs, labels.to(device), times, lengths)",
        "nn.functional.ctc_loss(log_probs, labels, times, lengths)",
        "nn.functional.ctc_loss(log_probs, labels.flatten().int(), times.int(), lengths.int())",
        "nn.functional.ctc_loss(log_probs, labels.to(device), times.tolist(), lengths.tolist())",
    ],
    ids=["lengths", "labels", "flat", "lists"],
)
def test_labels_and_lengths_on_the_host_reach_the_card(tmp_path, capsys, loss):
    on_card = "nn.functional.ctc_loss(log_probs, labels.to(device), times.to(device), lengths.to(device))"
    whole, found = (
        estimated(capsys, written(tmp_path, TRAINS + CTC.replace("LOSS", one)))[1] for one in (on_card, loss)
    )
    assert found["peak_allocated_bytes"] == pytest.approx(whole["peak_allocated_bytes"], rel=0.01)
