"""The table of GPUs: names, aliases, sources, nothing guessed."""

import argparse
import json
import pickle

import pytest
from run_code import run_code

from snugfit import calibrations
from snugfit.cli import devices as command
from snugfit.devices import DEVICES, card_identity, device_named, device_names
from snugfit.errors import InputError

GIB = 2**30
REQUIRED = (
    *("t4-16gb", "v100-16gb", "v100-32gb", "a10g-24gb", "l4-24gb", "l40s-48gb", "a100-40gb", "a100-80gb", "h100-80gb"),
    *("h200-141gb", "b200-192gb", "rtx-3060-12gb", "rtx-3080-10gb", "rtx-3090", "rtx-4060-8gb", "rtx-4070-12gb"),
    *("rtx-4080-16gb", "rtx-4090", "rtx-5080-16gb", "rtx-5090", "rtx-6000-ada", "rtx-a6000", "mi300x-192gb", "m3-max"),
    "cpu",
)


def test_all_cards_of_the_design_are_there():
    assert set(REQUIRED) | {"local"} <= set(device_names())


@pytest.mark.parametrize(
    "text, name",
    [
        ("rtx-4090", "rtx-4090"),
        ("RTX 4090", "rtx-4090"),
        ("4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("rtx-4090-24gb", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA H100 80GB HBM3", "h100-80gb"),
        ("h100", "h100-80gb"),
        ("Tesla T4", "t4-16gb"),
        ("a6000", "rtx-a6000"),
        ("rtx-5090-32gb", "rtx-5090"),
        ("mi300x", "mi300x-192gb"),
        ("CPU", "cpu"),
    ],
)
def test_names(text, name):
    assert device_named(text).name == name


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_every_name_finds_its_own_row(device):
    assert device_named(device.name) is device
    assert device_named(device.vendor_name) is device
    assert pickle.loads(pickle.dumps(device)) == device


def test_a_name_of_several_cards_is_refused_with_all_of_them():
    with pytest.raises(InputError) as error:
        device_named("a100")
    assert "a100-40gb" in str(error.value) and "a100-80gb" in str(error.value)


@pytest.mark.parametrize("text, meant", [("rtx-4900", "rtx-4090"), ("h10", "h100-80gb"), ("a100-80", "a100-80gb")])
def test_unknown_cards_are_refused_with_the_nearest(text, meant):
    with pytest.raises(InputError) as error:
        device_named(text)
    assert meant in str(error.value)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.name)
def test_rows_are_sane_and_have_a_source(device):
    assert device.source and device.memory_source
    if device.name == "cpu":
        assert device.memory_bytes is None
        return
    nominal = device.name.rsplit("-", 1)[-1]
    if nominal.endswith("gb"):
        assert 0.9 < device.memory_bytes / GIB / int(nominal[:-2]) <= 1.0
    if device.bytes_only:
        assert not device.flops
        return
    assert 0 < device.flops["float32"] <= device.flops["float16"]
    assert device.flops.get("bfloat16", device.flops["float16"]) == device.flops["float16"]
    assert ("bfloat16" in device.flops) == ("tf32" in device.flops) == (device.compute_capability >= (8, 0))
    assert ("float8" in device.flops) == (device.compute_capability >= (8, 9))
    if "float8" in device.flops:
        assert device.flops["float8"] == pytest.approx(2 * device.flops["float16"], rel=0.02)
    # 128 lanes (64 before Ampere's GeForce cards and in A100) of one multiply-add at 1.1 to 2.7 GHz
    lanes = 64 if device.compute_capability in ((7, 0), (7, 5), (8, 0)) else 128
    clock = device.flops["float32"] / (device.sm_count * lanes * 2)
    assert 1.1e9 < clock < 2.7e9
    assert 10 < device.flops["float16"] / device.memory_bandwidth < 500


def test_memory_is_a_reading_wherever_cuda_runs():
    readings = [device for device in DEVICES if device.compute_capability is not None]
    assert readings and all("torch" in device.memory_source for device in readings)
    assert all(device.memory_bytes % 2**20 == 0 and device.memory_bytes % 2**30 for device in readings)


def test_local_without_a_gpu_says_what_to_do(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match="Name a card"):
        device_named("local")


def test_local_takes_bytes_from_the_driver_and_speed_from_the_table(monkeypatch):
    torch = pytest.importorskip("torch")

    class Properties:
        name, total_memory, major, minor, multi_processor_count = "NVIDIA GeForce RTX 4090", 25_000_000_000, 8, 9, 128

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    local = device_named("local")
    assert (local.name, local.memory_bytes) == ("local", 25_000_000_000)
    assert local.flops == device_named("rtx-4090").flops
    assert local.context == device_named("rtx-4090").context
    Properties.name = "NVIDIA Something New"
    unknown = device_named("local")
    assert unknown.flops == {} and unknown.context.source == "assumed" and unknown.context_bytes > 0


def test_local_takes_speeds_from_a_calibration_of_this_torch(monkeypatch, tmp_path):
    torch = pytest.importorskip("torch")

    class Properties:
        name, total_memory, major, minor, multi_processor_count = "NVIDIA GeForce RTX 4090", 25_000_000_000, 8, 9, 128

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: Properties)
    row = {"flops": {"float32": 7e13}, "host_operator_seconds": 1e-5, "context_bytes": 3}
    calibrations.keep(
        card_identity(Properties.name, torch.__version__), {"speeds": {}, "row": row, "date": "2026-11-22"}
    )
    local = device_named("local")
    assert (local.flops, local.host_operator_seconds, local.context_bytes) == ({"float32": 7e13}, 1e-5, 3)
    assert local.memory_bytes == 25_000_000_000 and local.source == "snugfit calibrate, 2026-11-22"
    monkeypatch.setattr(torch, "__version__", "9.9")
    assert device_named("local").flops == device_named("rtx-4090").flops


def run_command(*options):
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return command.run(parser.parse_args(options))


def test_the_command_prints_every_card(capsys):
    assert run_command() == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0].rstrip("*") for line in lines[2:] if line]
    assert names[: len(DEVICES)] == [device.name for device in DEVICES]
    assert all(len(line) <= 120 for line in lines)


def test_the_command_as_json(capsys):
    assert run_command("--json") == 0
    rows = json.loads(capsys.readouterr().out)["devices"]
    assert {row["name"] for row in rows} >= set(REQUIRED)
    assert all(row["source"] and row["memory_source"] for row in rows)
    for row in rows:
        read = row["context_source"] == "published"
        assert read == bool(row["context_readings"]) and all(row["context_readings"].values())
        assert (row["context_bytes"] is None) == (row["context_source"] is None) == (row["name"] == "cpu")


def test_torch_is_not_imported():
    modules = "snugfit.cli.devices, snugfit.recording.clock, snugfit.recording.snapshot, snugfit.recording.anatomy"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    assert run_code(code, without_torch=True).returncode == 0


def test_a_file_is_a_card_in_another_machine(tmp_path):
    path = tmp_path / "bridged.yaml"
    path.write_text(
        "like: RTX 3090\npeer_link: NVLink 3\npeer_gigabytes_per_second: 56.25\npeer_cards: 2\n"
        "network: Ethernet\nnetwork_gigabits_per_second: 10\n"
    )
    card, base = device_named(str(path)), device_named("rtx-3090")
    assert (card.peer_link, card.peer_bandwidth, card.peer_cards) == ("NVLink 3", 56.25e9, 2)
    assert (card.network, card.network_bandwidth, card.links_source) == ("Ethernet", 1.25e9, str(path))
    assert (card.name, card.memory_bytes, card.flops) == (base.name, base.memory_bytes, base.flops)


@pytest.mark.parametrize(
    "text, message",
    [
        ("peer_cards: 2", "like: a100-80gb"),
        ("like: rtx-3090\npeer_cars: 2", "peer_cards"),
        ("like: rtx-3090\npeer_cards: two", "whole number above 0"),
        ("like: rtx-3090\npeer_cards: true", "whole number above 0"),
        ("like: rtx-3090\nnetwork_gigabits_per_second: -1", "number above 0"),
        ("like: rtx-3090\nnetwork_gigabits_per_second: .nan", "number above 0"),
        ("like: rtx-3090\nnetwork: 5", "text"),
        ("like: rtx-9090", "unknown"),
        ("like: other.yaml", "another file"),
        ("5: 6\nlike: rtx-3090", "unknown"),
        ("[1", "not YAML"),
    ],
)
def test_a_wrong_device_file_is_refused_in_one_sentence(tmp_path, text, message):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match="(?s)" + message) as error:
        device_named(str(path))
    assert "\n" not in str(error.value)


def test_links_are_shown(capsys):
    assert run_command("h100", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["peer_link"], shown["peer_link_bytes_per_second"], shown["peer_cards"]) == ("NVLink 4", 450e9, 8)
    assert (shown["network"], shown["network_bytes_per_second"]) == ("InfiniBand NDR", 50e9)
    assert shown["links_source"] and shown["nccl_source"] == "assumed"
    assert run_command("rtx-4090", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["peer_link"], shown["network"], shown["network_bytes_per_second"]) == ("PCIe", None, None)
    assert shown["nccl_bytes"] is None and "without NVLink" in shown["nccl_readings"]
