"""`--device rehearse:CARD`: a whole run with a card's memory, on the processor."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import snugfit
from snugfit import InputError
from snugfit.cli import main
from snugfit.cli.ladder import _probed
from snugfit.devices import device_named
from snugfit.pretend_card.present import card_present
from snugfit.runs.run_device import run_device

CARD = "rehearse:rtx-3060-12gb"
MIB = 2**20
RESNET = {
    "model": "torchvision:resnet18", "model_arg": {"num_classes": 10}, "data": "digits", "image_size": 32,
    "batch_size": 16, "samples": 96, "progress": False,
}  # fmt: skip
VIT = {
    "model": "timm:vit_tiny_patch16_224", "model_arg": {"depth": 2, "num_classes": 10, "img_size": 64}, "data": "digits",
    "image_size": 64, "batch_size": 16, "samples": 96, "progress": False,
}  # fmt: skip


@pytest.fixture
def llama(tmp_path):
    """Arguments of a small Llama on random tokens."""
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 512, "hidden_size": 64,
        "intermediate_size": 160, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    }  # fmt: skip
    (tmp_path / "llama").mkdir()
    (tmp_path / "llama" / "config.json").write_text(json.dumps(config))
    return {
        "model": f"hf:{tmp_path / 'llama'}", "data": "random", "task": "causal-lm", "seq_len": 64, "batch_size": 8,
        "samples": 64, "progress": False,
    }  # fmt: skip


def _rehearsed(run_dir, arguments, **more):
    return snugfit.train(**{"device": CARD, "max_steps": 2, "run_dir": run_dir, **arguments, **more})


def _same_bytes(result):
    measured = {name: size for name, size in result.measured.items() if size is not None}
    assert measured == {name: result.predicted[name] for name in ("peak_allocated_bytes", "peak_reserved_bytes")}


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"microbatch_size": 4, "checkpoint": "all", "offload_activations": "checkpoints", "precision": "bf16-mixed"},
        {"offload_optimizer": True, "step_in_backward": True, "workers": 1, "pin_memory": True},
    ],
    ids=["plain", "offloaded_checkpoints", "offloaded_optimizer"],
)
def test_takes_the_predicted_bytes(fields, tmp_path):
    _same_bytes(_rehearsed(tmp_path / "run", VIT, predict=True, **fields))


def test_a_language_model_takes_the_estimated_bytes(llama, tmp_path, capsys):
    fields = {"precision": "bf16-true", "adapter": "lora", "checkpoint": "all"}
    measured = _rehearsed(tmp_path / "run", llama, **fields).measured
    words = [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]
    sizes = ["--seq-len", "64", "--batch-size", "8"]
    assert main(["estimate", llama["model"], "--device", "rtx-3060-12gb", "--json", *sizes, *words]) == 0
    found = json.loads(capsys.readouterr().out)
    for name in ("peak_allocated_bytes", "peak_reserved_bytes"):
        assert measured[name] == found[name]


def test_a_budget_is_kept_and_its_bytes_are_the_predicted_ones(tmp_path):
    few = ("microbatch_size", "init", "loss_impl", "optimizer_impl", "inplace", "step_in_backward")
    result = _rehearsed(tmp_path / "run", RESNET, budget="270MiB", forbid=few)
    assert result.recipe != snugfit.Recipe()
    assert result.measured["peak_reserved_bytes"] <= 270 * MIB - device_named("rtx-3060").context_bytes
    _same_bytes(result)


def test_the_numbers_are_those_of_the_processor_and_the_files_too(tmp_path):
    from safetensors.torch import load_file

    rehearsed = _rehearsed(tmp_path / "card", RESNET)
    plain = _rehearsed(tmp_path / "cpu", RESNET, device="cpu")
    assert rehearsed.metrics["test_loss"] == pytest.approx(plain.metrics["test_loss"], rel=1e-3)
    saved = load_file(tmp_path / "card" / "model.safetensors")
    for name, value in rehearsed.model.state_dict().items():
        assert type(value) is torch.Tensor and torch.equal(value, saved[name]), name
    for name, value in load_file(tmp_path / "cpu" / "model.safetensors").items():
        torch.testing.assert_close(saved[name], value, rtol=1e-2, atol=1e-3, msg=name)


def test_several_cards_take_the_predicted_bytes_and_learn_what_one_processor_does(tmp_path):
    common = {
        **VIT, "data": "random",  # each process would import what reads digits
        "checkpoint": "all", "microbatch_size": 8, "max_steps": 2, "evaluate": False, "optimizer": "sgd", "lr": 0.05,
    }  # fmt: skip
    here = snugfit.train(**common, device="cpu", run_dir=tmp_path / "here")
    there = _rehearsed(tmp_path / "card", common, gpus=2, shard="full", predict=True)
    for name in ("peak_allocated_bytes", "peak_reserved_bytes"):
        # The second process was sent its weights, and may have kept some of the room that they came in.
        first, second = (one[name] for one in there.measured["ranks"])
        assert first == there.predicted[name] == pytest.approx(second, rel=0.05)
    weights, learned = (load_file(Path(result.run_dir) / "model.safetensors") for result in (here, there))
    for name, value in weights.items():
        torch.testing.assert_close(learned[name], value, rtol=1e-4, atol=1e-5)


def test_says_that_it_is_a_rehearsal(tmp_path):
    result = _rehearsed(tmp_path / "run", RESNET, max_steps=1, evaluate=False)
    assert result.document["device"] == CARD and result.document["rehearsal"]
    assert result.seconds is None and result.samples_per_second is None
    assert "how long it takes says nothing" in " ".join(str(result).split())


def test_goes_on_where_it_stopped(tmp_path):
    whole = _rehearsed(tmp_path / "whole", RESNET, max_steps=2, evaluate=False)
    _rehearsed(tmp_path / "parts", RESNET, max_steps=1, evaluate=False)
    parts = snugfit.train(run_dir=tmp_path / "parts", resume=True, max_steps=2, progress=False)
    assert parts.document["device"] == CARD
    for name, value in parts.model.state_dict().items():
        assert torch.equal(value, whole.model.state_dict()[name]), name


def test_a_model_that_is_larger_than_the_card_is_refused_as_on_the_card(tmp_path):
    layers = "torch.nn.Flatten(), torch.nn.Linear(192, 2**25 // 3 + 1)"
    (tmp_path / "wide.py").write_text(f"import torch\n\ndef model():\n    return torch.nn.Sequential({layers})\n")
    with pytest.raises(snugfit.SnugfitError, match=r"Tried to allocate 8\.00 GiB"):
        _rehearsed(
            tmp_path / "run", {"data": "digits", "image_size": 8, "batch_size": 16, "progress": False},
            model=f"{tmp_path / 'wide.py'}:model", init="device", device="rehearse:rtx-4060-8gb",
        )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rehearse:", "names no card to rehearse"),
        ("rehearse:cuda", "names no card to rehearse"),
        ("rehearse:rtx-9999", "device 'rtx-9999' is unknown"),
        ("rehearse:cpu", "cpu is no CUDA card"),
        ("rehearse:mi300x", "mi300x-192gb is no CUDA card"),
        ("gpu", "device 'gpu' is unknown"),
        ("sim", "device 'sim' is unknown"),
        ("xpu", "device 'xpu' is not there"),
    ],
)
def test_devices_that_are_not_there(name, message):
    with pytest.raises(InputError, match=message):
        run_device(name)


@pytest.mark.parametrize(
    "fields",
    [{"compile": "inductor"}, {"optimizer": "adamw4bit"}, {"optimizer": "paged-adamw"}, {"loss_impl": "fused"}],
)
def test_what_only_a_card_has_is_refused(fields):
    with pytest.raises(InputError, match="cannot be rehearsed"):
        run_device(CARD).check(snugfit.Recipe(**fields))
    run_device("cpu").check(snugfit.Recipe(**fields))


def test_a_ladder_knows_the_card_by_its_row():
    assert _probed(CARD).kind == "cuda" and _probed(CARD).bf16
    assert not _probed("rehearse:t4-16gb").bf16


def test_tells_of_its_memory_as_torch_does():
    with card_present(100 * MIB, total_bytes=120 * MIB, name="small card"):
        assert torch.cuda.get_device_name() == "small card"
        assert torch.cuda.mem_get_info() == (100 * MIB, 120 * MIB)
        held = torch.empty(30 * MIB, dtype=torch.uint8, device="cuda")
        assert torch.cuda.memory_reserved() == 30 * MIB == torch.cuda.memory_stats()["reserved_bytes.all.current"]
        (segment,) = torch.cuda.memory_snapshot()
        assert segment["total_size"] == 30 * MIB and segment["blocks"][0]["state"] == "active_allocated"
        torch.cuda.set_per_process_memory_fraction(0.5)
        with pytest.raises(torch.OutOfMemoryError, match=r"60\.0 MiB for this process"):
            torch.empty(40 * MIB, dtype=torch.uint8, device="cuda")
        torch.cuda.set_per_process_memory_fraction(1.0)
        assert torch.empty(40 * MIB, dtype=torch.uint8, device="cuda").numel() == 40 * MIB
        del held
        torch.cuda.reset_peak_memory_stats()
        assert torch.cuda.max_memory_allocated() == 0 and torch.cuda.max_memory_reserved() == 70 * MIB
    assert "small card" not in str(vars(torch.cuda).get("get_device_name"))
