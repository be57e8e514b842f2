"""What keeps its values in the recording of a script, and what is fake."""

import pytest
import torch
from own_scripts import LOOP, TRAINS, estimated, measured_bytes, written
from safetensors.torch import save_file


def test_layers_that_are_copied_are_weights(tmp_path, capsys):
    copied = """
import copy
layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
body = nn.TransformerEncoder(layer, 6)
assert len({weight.data_ptr() for _ in range(2) for weight in body.parameters()}) == len(list(body.parameters()))
model = nn.Sequential(body, nn.Linear(32, 4)).to(device)
ends = [weight.view(-1)[-1:].data_ptr() + weight.element_size() for weight in body.parameters()]
assert all(weight.data_ptr() < end for weight, end in zip(body.parameters(), ends))  # as libraries ask that save weights
average = copy.deepcopy(model)
optimizer = torch.optim.AdamW(model.parameters())
"""
    body = LOOP.replace("torch.randn(640, 32)", "torch.randn(640, 5, 32)").replace(
        "model(x.to(device))", "model(x.to(device))[:, 0]"
    )
    _, estimate, err = estimated(capsys, written(tmp_path, TRAINS + copied + body))
    assert estimate is not None, err
    one = 4 * 32 * 32 + 4 * 32 + 2 * 32 * 64 + 64 + 32 + 4 * 32
    assert estimate["parameters"] == 6 * one + 32 * 4 + 4
    assert estimate["anatomy_bytes"]["weights"] >= 2 * 4 * estimate["parameters"]  # those of the average as well


def test_weights_of_files_count_as_those_of_layers(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save_file({"weight": torch.zeros(4096, 32)}, "weights.safetensors")
    mapped = """
from safetensors.torch import load_file
model[0].weight = nn.Parameter(load_file("weights.safetensors")["weight"])
model[2].weight.data = torch.from_numpy(__import__("numpy").zeros((4, width), "float32"))
optimizer = torch.optim.AdamW(model.parameters())
"""
    made, read = (
        estimated(capsys, written(tmp_path, TRAINS + more + LOOP), "--width", "4096", device="cpu")[1]
        for more in ("", mapped)
    )
    assert read["anatomy_bytes"] == made["anatomy_bytes"]


COUNTS = """
for _ in range(4):
    found = model(torch.randn(64, 32, device=device))
    nn.functional.cross_entropy(found, torch.zeros(64, dtype=torch.long, device=device)).backward()
    optimizer.step()
    optimizer.zero_grad()
    assert torch.bincount(found.argmax(1), minlength=16).view(4, 4).shape == (4, 4)
    sizes = torch.tensor(found.shape, device=device)[None].cpu()
    assert max(row[1] for row in sizes) == 4 and sizes.tolist() == [[64, 4]]
    halves = torch.tensor([one / 2 for one in torch.arange(3, device=device)], device=device)  # as rotary positions are
    assert halves.tolist() == [0.0, 0.5, 1.0]
"""


@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
def test_counts_and_written_numbers_are_known(tmp_path, capsys, device):
    code, _, err = estimated(capsys, written(tmp_path, TRAINS + COUNTS), device=device)
    assert code == 0, err


COLLATED = """
from torch.nn.utils.rnn import pad_sequence

samples = [torch.cat([torch.full((8,), 3), torch.full((1 + number % 5,), 2.0).long()]) for number in range(64)]

def collate(samples):
    ids = torch.zeros(len(samples), 13, dtype=torch.long)
    for row, sample in zip(ids, samples):
        row[: len(sample)] = sample
    assert torch.equal(ids, pad_sequence(samples, batch_first=True))
    wanted = torch.zeros(ids.shape, dtype=torch.bool)
    wanted[:, :4] = torch.rand(len(samples), 4) < 0.5
    wanted[torch.arange(len(samples)), torch.zeros(len(samples)).long()] = True
    assert 1 < wanted.sum() / len(samples) < 4
    return ids

for ids in torch.utils.data.DataLoader(samples, batch_size=64, collate_fn=collate):
    assert ids.ne(0).sum() == sum(map(len, samples)) and ids.eq(3).sum() == 8 * 64
    model(torch.randn(64, 32, device=device)).mean().backward()
    optimizer.step()
"""


@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
def test_data_holds_what_code_writes_into_it(tmp_path, capsys, device):
    """A collator fills zeros with the ids of its samples, which code may have made."""
    code, _, err = estimated(capsys, written(tmp_path, TRAINS + COLLATED), device=device)
    assert code == 0, err


JUDGED = """
data = torch.utils.data.TensorDataset(torch.randn(256, 32), torch.arange(256) % 5)
for x, y in torch.utils.data.DataLoader(data, batch_size=64):
    loss = nn.functional.cross_entropy(model(x.to(device)), y.clamp(max=3).to(device))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
with torch.inference_mode():  # the matrix of classes that torchvision's references keep
    found, wanted = model(x.to(device)).argmax(1), y.to(device)
    known = (wanted >= 0) & (wanted < 4)
    assert found[known].shape == (int((y < 4).sum()),)
"""


@pytest.mark.parametrize("device", ["cpu", "rtx-4090"])
def test_masks_of_labels_are_known_in_inference_too(tmp_path, capsys, device):
    code, _, err = estimated(capsys, written(tmp_path, TRAINS + JUDGED), device=device)
    assert code == 0, err


ARRAYS = """
def features(number):
    return torch.randn(80, 400 + number).mul(2).numpy()

kept = [features(number)[:, :-1] for number in range(20)]  # views, whose memory torch made
del kept[10:]
whole = [features(number).copy() for number in range(20)]
for step in range(3):
    x = torch.from_numpy(whole[0]).flatten()[:64 * 32].view(64, 32)
    model(x.to(device)).mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_memory_of_torch_lives_as_long_as_the_arrays_on_it(tmp_path, capsys):
    path = written(tmp_path, TRAINS + ARRAYS)
    _, found, _ = estimated(capsys, path, device="cpu")
    assert found["peak_allocated_bytes"] == pytest.approx(measured_bytes(path), rel=0.01)
    assert found["peak_allocated_bytes"] > 10 * 80 * 400 * 4


PINNED = """
def pack(tensor):
    kept = torch.empty(tensor.size(), dtype=tensor.dtype, pin_memory=True)
    kept.copy_(tensor, non_blocking=True)
    return kept

for _ in range(3):
    x, y = torch.randn(64, 32, device=device), torch.zeros(64, dtype=torch.long, device=device)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda kept: kept.to(device, non_blocking=True)):
        loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_what_is_saved_goes_to_locked_pages_of_the_host(tmp_path, capsys):
    """Labels too: small whole numbers, which are real tensors in an estimate, on a machine without a card."""
    _, found, err = estimated(capsys, written(tmp_path, TRAINS + PINNED))
    assert found is not None and found["host_bytes"] > 64 * 256 * 4, err


FLEX = """
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
attend = torch.compile(flex_attention)
mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, 1024, 1024, device=device)
for _ in range(3):
    heads = nn.functional.linear(torch.randn(2, 4, 1024, 32, device=device), model[0].weight[:64])
    attend(heads, heads, heads, block_mask=mask).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


def test_flex_attention_is_one_kernel_on_a_card(tmp_path, capsys, monkeypatch):
    """Torch refuses it on a device that it does not know; its scores and their gradients would be 64 MiB and more."""
    monkeypatch.setenv("TORCH_COMPILE_DISABLE", "1")  # what a compiler fuses around it is left out of the comparison
    _, found, err = estimated(capsys, written(tmp_path, TRAINS + FLEX))
    assert found is not None, err
    assert found["peak_allocated_bytes"] < 2**26 and any("FlexAttention" in one for one in found["answered"])
    plain = FLEX.replace("attend(heads, heads, heads, block_mask=mask)", "causal(heads)").replace(
        "attend =", "causal = lambda x: nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)\nattend ="
    )
    _, efficient, _ = estimated(capsys, written(tmp_path, TRAINS + plain))
    assert found["peak_allocated_bytes"] == pytest.approx(efficient["peak_allocated_bytes"], rel=0.02)


def test_a_weight_made_anew_by_its_own_class(tmp_path, capsys):
    """As accelerate does for each weight of a model that diffusers loads."""
    anew = """
for layer in (model[0], model[2]):
    old = layer.weight
    with torch.no_grad():
        layer._parameters["weight"] = type(old)(torch.zeros(old.shape), requires_grad=True).to(device)
del old
model.requires_grad_(True)
optimizer = torch.optim.AdamW(model.parameters())
"""
    _, found, _ = estimated(capsys, written(tmp_path, TRAINS + anew + LOOP))
    _, plain, _ = estimated(capsys, written(tmp_path, TRAINS + LOOP))
    assert found["peak_allocated_bytes"] == plain["peak_allocated_bytes"]


def test_weights_that_are_normalised_go_to_the_card(tmp_path, capsys):
    """`weight_norm` keeps what it computed of its weights, which may not be held by anyone when they go elsewhere."""
    normed = """
    model = nn.Sequential(nn.Linear(32, width), nn.ReLU(), nn.utils.weight_norm(nn.Linear(width, 4))).to(device)
    model[2].weight_g.data.fill_(1)
    optimizer = torch.optim.AdamW(model.parameters())
    """
    _, found, err = estimated(capsys, written(tmp_path, TRAINS + normed.replace("\n    ", "\n") + LOOP))
    assert found is not None and found["parameters"] == 33 * 256 + 257 * 4 + 4, err


SELECTS = """
import torch
from torch import nn
torch.manual_seed(0)
model = nn.Linear(64, 1024)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(4):
    chosen = (torch.rand(1024) < 0.15).unsqueeze(-1).expand(1024, 1024)
    loss = torch.masked_select(model(torch.randn(1024, 64)), chosen).view(-1, 1024).logsumexp(-1).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""


def test_what_masked_select_counts_by_is_counted(tmp_path, capsys):
    script = written(tmp_path, SELECTS)
    _, found, err = estimated(capsys, script, device="cpu")
    assert found is not None, err
    assert found["peak_allocated_bytes"] == pytest.approx(measured_bytes(script), rel=0.02)


def test_nested_tensors_are_refused_in_a_sentence(tmp_path, capsys):
    nested = SELECTS.replace("    chosen", "    torch.nested.nested_tensor([torch.ones(3), torch.ones(5)])\n    chosen")
    code, _, err = estimated(capsys, written(tmp_path, nested), device="cpu")
    assert code == 5 and "torch.nested.nested_tensor: operators on nested tensors are not simulated" in err
    assert "Traceback" not in err
