"""Training scripts as people write them, estimated without a change, and nothing is left behind."""

import json
import textwrap
from pathlib import Path

import pytest
from own_scripts import LOOP, TRAINS, estimated, measured_bytes, written
from run_code import run_code

from snugfit.cli import main


def test_a_script_on_cpu_takes_what_is_predicted(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = written(tmp_path, TRAINS + LOOP)
    _, estimate, err = estimated(capsys, path, "--width", "4096", device="cpu")
    assert estimate is not None, err
    assert estimate["peak_allocated_bytes"] == pytest.approx(measured_bytes(path, "--width", "4096"), rel=0.02)
    assert estimate["parameters"] == 32 * 4096 + 4096 + 4096 * 4 + 4


def test_the_batch_is_an_input(tmp_path, capsys):
    for device in ("cpu", "rtx-4090"):
        _, found, _ = estimated(capsys, written(tmp_path, TRAINS + LOOP), device=device)
        assert 64 * 32 * 4 <= found["anatomy_bytes"]["inputs"] <= 64 * 33 * 4


def test_gradients_by_transforms_are_predicted(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loop = LOOP.replace(
        "loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))",
        "each = torch.func.vmap(torch.func.grad(loss_of), in_dims=(None, 0, 0))(dict(model.named_parameters()), x, y)\n"
        "        loss = nn.functional.cross_entropy(model(x), y) + sum(one.square().sum() for one in each.values())",
    )
    call = "    return nn.functional.cross_entropy(torch.func.functional_call(model, weights, (x,)), y)\n"
    path = written(tmp_path, TRAINS + "def loss_of(weights, x, y):\n" + call + loop)
    _, estimate, err = estimated(capsys, path, device="cpu")
    assert estimate is not None, err
    assert estimate["peak_allocated_bytes"] == pytest.approx(measured_bytes(path), rel=0.02)


def test_words_behind_the_script_are_its_own(tmp_path, capsys):
    path = written(tmp_path, TRAINS + LOOP)
    (_, small, _), (_, large, _) = (estimated(capsys, path, "--width", width) for width in ("256", "4096"))
    assert large["anatomy_bytes"]["weights"] > 10 * small["anatomy_bytes"]["weights"]


def test_options_of_ours_behind_a_script_are_told(tmp_path):
    path = written(tmp_path, TRAINS.replace("parse_args()", "parse_known_args()[0]") + LOOP)
    words = ["estimate", "--device", "t4-16gb", "--json", str(path), "--width", "8", "--device=rtx-4090"]
    done = run_code(
        "import sys\nfrom snugfit.cli import main\n"
        f"assert main({words}) == 0\nassert 'torch' not in sys.modules, 'seconds more'\n",
        without_torch=True,
    )
    assert done.returncode == 0, done.stderr
    assert [row["name"] for row in json.loads(done.stdout)["devices"]] == ["t4-16gb"]
    assert f"--device: given to {path}" in done.stderr and "put --device before it" in done.stderr


def test_a_device_object_says_cuda(tmp_path, capsys):
    seen = 'assert device.type == "cuda" and model[0].weight.device.type != "cpu" and torch.zeros(1).device.type == "cpu"\n'
    seen += "torch.cuda.random.set_rng_state_all(torch.cuda.random.get_rng_state_all())\n"
    seen += "torch.accelerator.synchronize(); torch.accelerator.current_stream().record_event().synchronize()\n"
    seen += "torch.accelerator.empty_cache(); torch.accelerator.set_device_index(torch.accelerator.current_device_index())\n"
    helper = 'def on_gpu(device):\n    return device.type in ("cuda",)\n'
    written(tmp_path, helper, "helper.py")
    path = written(tmp_path, TRAINS + seen + "import helper\nassert helper.on_gpu(device)\n" + LOOP)
    assert estimated(capsys, path)[0] == 0


def test_transforms_of_the_data_are_no_models(tmp_path, capsys):
    many = "changed = nn.ReLU()\nfor number in range(2001):\n    changed(torch.tensor([1.0, number]))\n"
    code, estimate, err = estimated(capsys, written(tmp_path, TRAINS + many + LOOP))
    assert code == 0, err
    assert estimate["parameters"] == 32 * 256 + 256 + 256 * 4 + 4


@pytest.mark.parametrize("on", [True, False])
def test_kernels_that_are_tried_are_told(on, tmp_path, capsys):
    text = f"torch.backends.cudnn.benchmark = {on}\nmodel.insert(0, nn.Conv1d(64, 64, 3, padding=1).to(device))\n"
    text += "optimizer = torch.optim.SGD(model.parameters())\n"
    code, _, err = estimated(capsys, written(tmp_path, TRAINS + text + LOOP))
    assert code == 0, err
    assert ("cudnn.benchmark" in err) is on


def test_the_evaluation_behind_an_epoch_is_seen(tmp_path, capsys):
    evaluation = """
    with torch.no_grad():
        right = 0
        for x, y in torch.utils.data.DataLoader(data, batch_size=640):
            right += (model(x.to(device)).argmax(1) == y.to(device)).sum().item()
        if right > 7:
            print("better")
    """
    path = written(tmp_path, TRAINS + LOOP)
    _, without, _ = estimated(capsys, path, "--width", "8192")
    path = written(tmp_path, TRAINS + LOOP + textwrap.indent(textwrap.dedent(evaluation), "    "))
    _, with_it, _ = estimated(capsys, path, "--width", "8192")
    assert with_it["peak_allocated_bytes"] > without["peak_allocated_bytes"] + 640 * 8192 * 4
    assert any("integer=1" in text for text in with_it["answered"])


AVERAGED = """
import copy
average = copy.deepcopy(model)
data = torch.utils.data.TensorDataset(torch.randn(192, 32), torch.arange(192) % 4)
for epoch in range(9):
    for x, y in torch.utils.data.DataLoader(data, batch_size=64):
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for x, y in torch.utils.data.DataLoader(data, batch_size=64):
            print((average(x.to(device)).argmax(1) == y.to(device)).sum().item())
"""


def test_what_a_step_computes_is_that_of_the_last_whole_one(tmp_path, capsys):
    """An epoch of three batches, and behind it the evaluation of a copy of the model."""
    _, found, _ = estimated(capsys, written(tmp_path, TRAINS + AVERAGED))
    of_blocks = {block["name"]: block["flops"] for block in found["blocks"]}
    assert sum(of_blocks.values()) == found["flops"] > 0 and of_blocks["0"] and of_blocks["2"]
    assert found["parameters"] == 32 * 256 + 256 + 256 * 4 + 4
    assert found["anatomy_bytes"]["weights"] >= 2 * 4 * found["parameters"]  # the copy lives as well
    assert found["host_waits"] is None or all(".py:2" not in row["line"] for row in found["host_waits"]["lines"])


def test_a_script_on_the_host_is_predicted_there_and_refused_for_a_card(tmp_path, capsys):
    script = written(tmp_path, TRAINS.replace('"cuda" if torch.cuda.is_available() else ', "") + LOOP)
    assert main(["estimate", "--device", "all", "--json", str(script)]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    assert [one["name"] for one in found["devices"]] == ["cpu"] and found["peak_allocated_bytes"] > 0
    assert "puts nothing on a card" in err
    assert main(["estimate", "--device", "rtx-3060", str(script)]) == 2
    assert "puts nothing on the card" in capsys.readouterr().err


@pytest.mark.parametrize("option", [["--batch-size", "8"], ["--checkpoint", "all"], ["--image-size", "32"]])
def test_options_of_models_are_not_for_scripts(option, tmp_path, capsys):
    path = written(tmp_path, TRAINS + LOOP)
    assert main(["estimate", *option, str(path)]) == 2
    assert f"{option[0]} is for a model by name" in capsys.readouterr().err


def test_the_example_of_the_readme(capsys):
    path = Path(__file__).parents[3] / "examples" / "plain_training.py"
    _, estimate, _ = estimated(capsys, path, "--layers", "2", "--batch-size", "4")
    assert [row["name"] for row in estimate["devices"]] == ["rtx-4090"] and estimate["peak_allocated_bytes"] > 0


GENERATES = """
import sys, torch
from transformers import GPT2Config, GPT2LMHeadModel
device = "cuda" if torch.cuda.is_available() else "cpu"
ends = {"bos_token_id": 1, "eos_token_id": 499, "pad_token_id": 0}
model = GPT2LMHeadModel(GPT2Config(vocab_size=500, n_embd=64, n_layer=2, n_head=2, n_positions=64, **ends)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
x = torch.randint(3, 500, (4, 8), device=device)
for step in range(4):
    model(input_ids=x, labels=x).loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    model.eval()
    length = model.generate(x, max_new_tokens=24, do_sample=False, num_beams=int(sys.argv[1])).shape[1]
    model.train()
    print("length", length)
"""


@pytest.mark.parametrize("beams", [1, 4])
def test_text_is_generated_to_its_greatest_length(tmp_path, capfd, beams):
    pytest.importorskip("transformers", reason="transformers is not installed (pip install 'snugfit[text]')")
    path = written(tmp_path, GENERATES)
    code, estimate, err = estimated(capfd, path, str(beams), device="cpu")
    assert code == 0 and ("length 32" in err or beams > 1), err
    assert estimate["peak_allocated_bytes"] == pytest.approx(measured_bytes(path, str(beams)), rel=0.01)


def test_a_function_that_is_compiled_and_not_called_is_not_told_of(tmp_path, capsys):
    code, _, err = estimated(capsys, written(tmp_path, TRAINS + "torch.compile(print)\n" + LOOP))
    assert code == 0 and "torch.compile" not in err


RANDOM_LENGTHS = """
for step in range(8):
    rows = int(torch.randint(1000, 4000, (1,), device=device))
    assert 1000 <= rows < 4000 and bool(torch.rand((), device=device) < 2)
    model(torch.randn(rows, 32, device=device)).sum().backward()
    optimizer.step()
"""


def test_random_numbers_that_a_script_reads_are_drawn(tmp_path, capsys):
    code, found, err = estimated(capsys, written(tmp_path, TRAINS + RANDOM_LENGTHS))
    assert code == 0, err
    assert any("where random numbers decide" in text for text in found["answered"])
    assert not any("integer" in text or "branch" in text for text in found["answered"])


ONE_STEP = """
model(torch.randn(4096, 32, device=device)).sum().backward()
optimizer.step()
"""


def test_the_only_step_of_a_script_is_timed(tmp_path, capsys):
    code, found, err = estimated(capsys, written(tmp_path, TRAINS + ONE_STEP), "--width", "4096")
    assert code == 0 and found["steps"] == 1, err
    forward_and_backward = 2 * 4096 * (32 * 4096 * 2 + 4096 * 4 * 3)
    assert forward_and_backward <= found["flops"] < 1.1 * forward_and_backward
    assert 0 < found["step_seconds"] < 0.1
