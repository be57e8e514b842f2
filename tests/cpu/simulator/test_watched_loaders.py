"""What loaders of scripts give, what passes through them keep, and when they end."""

import pytest
from own_scripts import TRAINS, estimated, measured_bytes, written

LENGTHS = """
class Texts(torch.utils.data.Dataset):
    def __len__(self):
        return 320

    def __getitem__(self, number):
        return torch.ones(LENGTH, 32)

pad = lambda texts: nn.utils.rnn.pad_sequence(texts, batch_first=True)
for texts in torch.utils.data.DataLoader(Texts(), batch_size=16, collate_fn=pad, shuffle=True):
    loss = model(texts.to(device)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
def test_batches_are_made_of_the_widest_samples(tmp_path, capsys, device):
    ragged = LENGTHS.replace("LENGTH", "100 if number >= 304 else number % 20 + 1")
    _, found, err = estimated(capsys, written(tmp_path, TRAINS + ragged), device=device)
    _, padded, silent = estimated(capsys, written(tmp_path, TRAINS + LENGTHS.replace("LENGTH", "100")), device=device)
    assert found["peak_allocated_bytes"] == padded["peak_allocated_bytes"]
    assert "the widest of 320 samples" in err and "widest" not in silent


SPLIT = LENGTHS.replace("LENGTH", "100 if number >= 304 else 20").replace(
    "shuffle=True", "sampler=torch.utils.data.SubsetRandomSampler(range(304))"
)
EVALUATED = """
with torch.no_grad():
    for texts in torch.utils.data.DataLoader(Texts(), batch_size=16, collate_fn=pad, sampler=range(304, 320)):
        assert texts.shape[1] == 100
"""


def test_loaders_of_one_data_set_draw_their_own(tmp_path, capsys):
    _, found, err = estimated(capsys, written(tmp_path, TRAINS + SPLIT + EVALUATED))
    _, alone, _ = estimated(capsys, written(tmp_path, TRAINS + LENGTHS.replace("LENGTH", "20")))
    assert found["peak_allocated_bytes"] == alone["peak_allocated_bytes"] and "Traceback" not in err


KEEPS = """
data = torch.utils.data.TensorDataset(torch.randn(6400, 32), torch.arange(6400) % 4)
for epoch in range(9):
    found = []
    for x, y in torch.utils.data.DataLoader(data, batch_size=64):
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # training
    with torch.no_grad():
        for x, y in torch.utils.data.DataLoader(data, batch_size=64):
            result = model[:2](x.to(device))
            # evaluation
"""


@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
@pytest.mark.parametrize("statement", ["found.append(result)", "found = [torch.cat([*found, result])]"])
def test_results_that_are_kept_count(tmp_path, capsys, statement, device):
    slow = TRAINS + KEEPS.replace("# evaluation", "[x[0] + 1 for _ in range(160)]; # evaluation")
    _, without, _ = estimated(capsys, written(tmp_path, slow), device=device)
    _, found, err = estimated(capsys, written(tmp_path, slow.replace("# evaluation", statement)), device=device)
    assert "a pass through 100 batches keeps 64.0 KiB of each" in err and f"{tmp_path / 'train.py'}:" in err, err
    more = found["peak_allocated_bytes"] - without["peak_allocated_bytes"]
    assert 190 * 64 * 256 * 4 < more < 202 * 64 * 256 * 4  # all of them, and once more where they are joined


def test_an_evaluation_of_few_operators_is_gone_through_for_what_is_computed_of_all_results(tmp_path, capsys):
    joined = "            found.append(result)\n    torch.cat(found).log_softmax(1)\n"
    path = written(tmp_path, TRAINS + KEEPS.replace("range(9)", "range(1)") + joined)
    _, found, err = estimated(capsys, path, device="cpu")
    assert "keeps" not in err
    assert found["peak_allocated_bytes"] == pytest.approx(measured_bytes(path, until="--steps=1000"), rel=0.01)


def test_what_steps_keep_is_told_of(tmp_path, capsys):
    statement = "found.append(model[:2](x.to(device)).detach())"
    _, found, err = estimated(capsys, written(tmp_path, TRAINS + KEEPS.replace("# training", statement)))
    (said,) = [note for note in found["notes"] if "keeps 64.0 KiB of each" in note]
    assert said in err and "97 behind those that are estimated would take 6.06 MiB more" in said, err
    assert found["devices"][0]["fits"]


def test_a_card_that_is_full_before_a_pass_ends_is_not_said_to_fit(tmp_path, capsys):
    kept = KEEPS.replace("# training", "found.append(torch.empty(2**26, device=device))")
    _, found, _ = estimated(capsys, written(tmp_path, TRAINS + kept))
    (card,) = found["devices"]
    assert not card["fits"] and -2 * 2**30 < card["headroom_bytes"] < 0  # 97 times 256 MiB are 24.25 GiB


@pytest.mark.parametrize(
    "statement",
    ["found = [*found[-7:], result]", "found = found if len(found) == 20 else [*found, result]"],
    ids=["queue", "cache"],
)
def test_what_is_full_soon_is_gone_through_until_it_is(tmp_path, capsys, statement):
    path = written(tmp_path, TRAINS + KEEPS.replace("# evaluation", statement).replace("range(9)", "range(2)"))
    _, found, err = estimated(capsys, path, device="cpu")
    assert "keeps" not in err
    assert found["peak_allocated_bytes"] == pytest.approx(measured_bytes(path, until="--steps=1000"), rel=0.02)


SECOND = """
others = torch.optim.AdamW(other.parameters())
data = torch.utils.data.TensorDataset(torch.randn(6400, 32))
for number, (x,) in enumerate(torch.utils.data.DataLoader(data, batch_size=64)):
    model(x.to(device)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
    if number % 4 == 3:
        other(x.to(device)).mean().backward()
        others.step()
        others.zero_grad()
"""


def test_an_optimizer_that_steps_less_often_is_waited_for(tmp_path, capsys):
    path = written(tmp_path, TRAINS + "other = nn.Linear(32, 4096).to(device)" + SECOND)
    _, found, _ = estimated(capsys, path, device="cpu")
    assert found["steps"] == 8
    assert found["peak_allocated_bytes"] == pytest.approx(measured_bytes(path, until="--steps=1000"), rel=0.001)


GATHERS = """
data = torch.utils.data.TensorDataset(torch.randn(6400, 32))
steps = 0
while steps < 20:
    for number, (x,) in enumerate(torch.utils.data.DataLoader(data, batch_size=64)):
        model(x.to(device)).mean().backward()
        if number % 8 == 7:
            optimizer.step()
            optimizer.zero_grad()
            steps += 1
"""


def test_a_loop_that_waits_for_more_batches_than_it_gets_ends(tmp_path, capsys):
    code, found, err = estimated(capsys, written(tmp_path, TRAINS + GATHERS))
    assert code == 0 and found["steps"] == 3, err


BY_NEXT = """
data = torch.utils.data.TensorDataset(torch.randn(6400, 32))
batches = iter(torch.utils.data.DataLoader(data, batch_size=64))
for _ in range(len(batches)):
    model(next(batches)[0].to(device)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_batches_by_next_do_not_end_early(tmp_path, capsys):
    code, found, err = estimated(capsys, written(tmp_path, TRAINS + BY_NEXT))
    assert code == 0 and found["steps"] == 3 and not err


STREAM = """
class Stream(torch.utils.data.IterableDataset):
    def __iter__(self):
        while True:
            yield torch.randn(32)

def batches():
    for x in torch.utils.data.DataLoader(Stream(), batch_size=64):
        yield x.to(device)

with torch.no_grad():
    held_out = batches()
    print("mean", sum(model(next(held_out)).mean() for _ in range(10)).shape)
for _, x in zip(range(100), batches()):
    model(x).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_batches_of_a_stream_by_next_before_training(tmp_path, capsys):
    code, found, err = estimated(capsys, written(tmp_path, TRAINS + STREAM))
    assert code == 0 and found["steps"] == 3, err


def test_results_that_are_not_kept_are_not(tmp_path, capsys):
    code, _, err = estimated(
        capsys, written(tmp_path, TRAINS + KEEPS.replace("# evaluation", "found = [result.cpu()]"))
    )
    assert code == 0 and "keeps" not in err


GROWS = """
for size in (4, 16, 64):
    data = torch.utils.data.TensorDataset(torch.randn(64, size, 32))
    for x, in torch.utils.data.DataLoader(data, batch_size=16):
        model(x.to(device)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


def test_batches_that_grow_with_each_loader_are_told(tmp_path, capsys):
    code, _, err = estimated(capsys, written(tmp_path, TRAINS + GROWS))
    assert code == 0 and "batches grow from one loader to the next (2048 numbers in one, 8192 in a later one)" in err
    _, _, silent = estimated(capsys, written(tmp_path, TRAINS + GROWS.replace("(4, 16, 64)", "(16, 16, 4)")))
    assert "batches grow" not in silent


EVALUATES_IN_BETWEEN = """
data = torch.utils.data.TensorDataset(torch.randn(64, 16, 32))
loader, larger = (torch.utils.data.DataLoader(data, batch_size=size) for size in (8, 32))
for epoch in range(3):
    for x, in loader:
        model(x.to(device)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for x, in larger:
        with torch.no_grad():
            model(x.to(device))
"""


def test_larger_batches_of_an_evaluation_between_epochs_have_not_grown(tmp_path, capsys):
    code, _, err = estimated(capsys, written(tmp_path, TRAINS + EVALUATES_IN_BETWEEN))
    assert code == 0 and "batches grow" not in err


ELSEWHERE = """
import sys
sys.path.insert(0, "elsewhere/site-packages")
from ahead import ahead
data = torch.utils.data.TensorDataset(torch.randn(6400, 32))
for epoch in range(9):
    for (x,) in ahead(torch.utils.data.DataLoader(data, batch_size=64)):
        loss = model(x.to(device)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.zeros(2**26, device=device)
"""
AHEAD = """
def ahead(loader):
    batches = iter(loader)
    batch = next(batches, None)
    while batch is not None:
        yield batch
        batch = next(batches, None)
"""


def test_a_library_that_asks_by_next_is_one_wherever_it_is_installed(tmp_path, capsys, monkeypatch):
    """accelerate does; what Colab, Debian or a user's folder have is in no folder of this Python."""
    folder = tmp_path / "elsewhere" / "site-packages"
    folder.mkdir(parents=True)
    (folder / "ahead.py").write_text(AHEAD)
    monkeypatch.chdir(tmp_path)
    _, found, err = estimated(capsys, written(tmp_path, TRAINS + ELSEWHERE))
    assert found is not None, err
    assert found["peak_allocated_bytes"] > 2**28  # behind the first epoch


ACCUMULATES = """
import sys, torch
from torch import nn
from transformers import Trainer, TrainingArguments

class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(32, 2048), nn.ReLU(), nn.Linear(2048, 1024))

    def forward(self, x, labels):
        logits = self.body(x)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}

samples = [{"x": torch.randn(32), "labels": number % 4} for number in range(600)]
arguments = TrainingArguments(
    "out", per_device_train_batch_size=4, gradient_accumulation_steps=int(sys.argv[1]), num_train_epochs=1,
    per_device_eval_batch_size=600, report_to=[], save_strategy="no", eval_strategy="epoch", use_cpu=True,
)
Trainer(Classifier(), arguments, train_dataset=samples[:60], eval_dataset=samples).train()
"""


@pytest.mark.parametrize("batches", ["1", "2", "5"])
def test_a_trainer_evaluates_without_gradients_of_a_step_half_done(tmp_path, capsys, batches):
    """Its loader is asked for a batch ahead, and the last of its batches are followed by an update."""
    path = written(tmp_path, ACCUMULATES)
    code, estimate, err = estimated(capsys, path, batches, device="cpu")
    assert code == 0, err
    assert estimate["peak_allocated_bytes"] == pytest.approx(
        measured_bytes(path, batches, until="--steps=99"), rel=0.001
    )


TENSOR = """
data = torch.randn(640, 32)
for epoch in range(3):
    for x in torch.utils.data.DataLoader(data, batch_size=64, shuffle=True):
        optimizer.zero_grad()
        model(x.to(device)).sum().backward()
        optimizer.step()
    with torch.no_grad():
        for x in torch.utils.data.DataLoader(data, batch_size=64, shuffle=True):
            model(x.to(device))
    taken = torch.empty(2**28, dtype=torch.uint8, device=device)
"""


def test_a_tensor_is_a_data_set_that_several_loaders_read(tmp_path, capsys):
    _, found, err = estimated(capsys, written(tmp_path, TRAINS + TENSOR))
    assert found is not None and found["peak_allocated_bytes"] > 2**28, err
    assert "failed behind" not in err
