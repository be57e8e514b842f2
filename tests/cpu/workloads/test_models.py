"""Models by name, their arguments, and every way of getting them wrong."""

import socket
import sys

import pytest
import torch

from snugfit.errors import InputError
from snugfit.workloads.model_shapes import input_channels, input_size, output_classes
from snugfit.workloads.models import build_model, parse_model_args


def write(folder, text, name="mine.py"):
    path = folder / name
    path.write_text(text)
    return path


def refused(spec, **settings):
    with pytest.raises(InputError) as caught:
        build_model(spec, **settings)
    message = str(caught.value)
    assert "Traceback" not in message
    assert message.count("\n") == 0
    return message


def test_torchvision_model_has_the_asked_classes():
    model = build_model("torchvision:resnet18", num_classes=7)
    assert model.fc.out_features == output_classes(model) == 7
    assert model.training
    assert input_size(model, "torchvision:resnet18") == 224
    assert input_channels(model) == 3


def test_model_args_reach_the_builder_and_win_over_num_classes():
    model = build_model(
        "torchvision:resnet18", model_args={"num_classes": 4, "zero_init_residual": True}, num_classes=3
    )
    assert model.fc.out_features == 4
    assert model.layer1[0].bn2.weight.abs().sum() == 0


def test_timm_model_with_classes_and_its_size():
    model = build_model("timm:resnet10t", num_classes=5, model_args={"in_chans": 1})
    assert model(torch.zeros(2, 1, 64, 64)).shape == (2, 5)
    assert input_channels(model) == 1
    assert input_size(model, "timm:resnet10t") == 176
    vit = build_model("timm:vit_tiny_patch16_224", model_args={"img_size": 64, "depth": 1})
    assert input_size(vit, "timm:vit_tiny_patch16_224") == 64


def test_torchvision_image_size_of_a_transformer_and_of_metadata():
    vit = build_model("torchvision:vit_b_32", model_args={"image_size": 64}, init="host", num_classes=2)
    assert input_size(vit, "torchvision:vit_b_32") == 64
    assert input_size(torch.nn.Identity(), "torchvision:inception_v3") == 299
    assert input_size(torch.nn.Identity(), "torchvision:mnasnet0_75") == 224


def test_backbones_are_not_downloaded_unasked(monkeypatch):
    def no_network(*args, **kwargs):
        raise OSError("no network in tests")

    monkeypatch.setattr(socket.socket, "connect", no_network)
    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    assert isinstance(build_model("torchvision:lraspp_mobilenet_v3_large", num_classes=2), torch.nn.Module)


def test_dtype_and_device_of_the_result():
    model = build_model("torchvision:resnet18", num_classes=2, dtype=torch.bfloat16)
    assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
    assert model.bn1.num_batches_tracked.dtype == torch.int64


def test_freeze_leaves_the_head():
    model = build_model("torchvision:resnet18", num_classes=2, freeze=["conv1.*", "bn1.*", "layer*"])
    assert [n for n, p in model.named_parameters() if p.requires_grad] == ["fc.weight", "fc.bias"]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("torchvision:resnet81", "did you mean 'torchvision:resnet1"),
        ("timm:vit_tiny_patch16_225", "'timm:vit_tiny_patch16_224'"),
        ("tochvision:resnet18", "did you mean 'torchvision:resnet18'?"),
        ("resnet18", "torchvision:NAME, timm:NAME, hf:DIRECTORY_OR_CONFIG_JSON, hf:KIND or path/file.py:function"),
        ("hff:bert-base-uncased", "did you mean 'hf:bert-base-uncased'?"),
    ],
)
def test_unknown_names_are_answered(spec, expected):
    assert expected in refused(spec)


def test_unknown_weights_list_what_there_is():
    assert "IMAGENET1K_V1" in refused("torchvision:resnet18", weights="IMAGENET1K_V3")
    assert "DEFAULT" in refused("timm:resnet10t", weights="c4_in1k")


def test_bad_arguments_of_a_library_model():
    message = refused("torchvision:resnet18", model_args={"depth": 3})
    assert "depth=3" in message
    assert "unexpected keyword" in message


def test_missing_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    assert "pip install 'snugfit[vision]'" in refused("timm:resnet10t")


def test_weights_without_network(monkeypatch, tmp_path):
    def no_network(*args, **kwargs):
        raise OSError("no network in tests")

    monkeypatch.setattr(socket, "getaddrinfo", no_network)
    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    message = refused("torchvision:resnet18", weights="DEFAULT", num_classes=5)
    assert "could not be fetched" in message
    assert "safetensors" in message


def test_function_of_a_file(tmp_path):
    write(tmp_path, "WIDTH = 6", "helper_beside.py")
    path = write(
        tmp_path,
        "import torch\nfrom helper_beside import WIDTH\n"
        "def model(num_classes=2, depth=1):\n"
        "    net = torch.nn.Sequential(torch.nn.Conv2d(1, WIDTH, 3), torch.nn.Flatten(), torch.nn.LazyLinear(depth),\n"
        "                              torch.nn.Linear(depth, num_classes))\n"
        "    net.image_size = 12\n"
        "    return net\n"
        "def plain(): return torch.nn.Linear(2, 2)\n",
    )
    model = build_model(f"{path}:model", num_classes=9, model_args={"depth": 3})
    assert model[3].out_features == 9
    assert model[3].in_features == 3
    assert input_size(model, f"{path}:model") == 12
    assert input_channels(model) == 1
    plain = build_model(f"{path}:plain", num_classes=9)
    assert plain.out_features == 2
    assert input_size(plain, f"{path}:plain") is None


BAD = """import torch
class Net(torch.nn.Module): pass
def raises(width=1):
    wide = [1, 2]
    return wide[width + 5]
def nothing(): pass
def inside(): return torch.nn.Linear(-1, 2)
def leaves(): raise SystemExit(3)
"""


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        ("raises", ["IndexError", "line 5: return wide[width + 5]"]),
        ("nothing", ["NoneType", "not a torch.nn.Module"]),
        ("inside", ["line 7"]),
        ("leaves", ["SystemExit", "line 8"]),
        ("raizes", ["did you mean 'raises'"]),
    ],
)
def test_mistakes_in_a_file_name_the_line(tmp_path, function, expected):
    path = write(tmp_path, BAD)
    message = refused(f"{path}:{function}")
    for part in expected:
        assert part in message


def test_arguments_a_function_does_not_take(tmp_path):
    message = refused(f"{write(tmp_path, BAD)}:raises", model_args={"widht": 3})
    assert "widht" in message
    assert "(width=1)" in message


def test_files_that_do_not_load(tmp_path):
    assert "does not exist" in refused(f"{tmp_path}/absent.py:model")
    assert "names no function" in refused(f"{write(tmp_path, BAD)}")
    assert "line 2: def f(" in refused(f"{write(tmp_path, 'x = 1' + chr(10) + 'def f(', 'syntax.py')}:f")
    assert "line 1: import not_there_at_all" in refused(f"{write(tmp_path, 'import not_there_at_all', 'missing.py')}:f")
    assert "no library of pretrained weights" in refused(f"{write(tmp_path, BAD)}:inside", weights="DEFAULT")


def test_model_args_from_text():
    given = [
        "num_classes=10",
        "rate=1e-3",
        "flag=true",
        "other=False",
        "name=relu",
        "sizes=(1, 2)",
        "none=None",
        "a-b=x=y",
    ]
    assert parse_model_args(given) == {
        "num_classes": 10, "rate": 1e-3, "flag": True, "other": False, "name": "relu", "sizes": (1, 2), "none": None,
        "a_b": "x=y",
    }  # fmt: skip
    for bad in (["10"], ["=3"], ["a b=3"], ["x=1", "x=2"]):
        with pytest.raises(InputError):
            parse_model_args(bad)
