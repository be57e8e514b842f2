"""Building on host, device and meta gives the same model; meta never holds memory that it should not."""

import pytest
import torch
from safetensors.torch import save_file
from torch.utils._python_dispatch import TorchDispatchMode

from snugfit.errors import InputError
from snugfit.techniques.init.apply import default_dtype, parameters_on_meta
from snugfit.workloads.models import build_model

FILE = """
import torch
class Net(torch.nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.embed = torch.nn.Embedding(11, 8)
        self.register_buffer("positions", torch.arange(5.0) / 3, persistent=False)
        self.register_buffer("mask", torch.ones(5, 5).tril().bool(), persistent=False)
        self.norm = torch.nn.BatchNorm1d(8)
        self.tied = torch.nn.Linear(8, 11, bias=False)
        self.tied.weight = self.embed.weight
        self.alpha = torch.nn.Parameter(torch.zeros(3))
        self.other = torch.nn.Module()
        self.other.alpha = self.alpha
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        self.head = torch.nn.Linear(8, classes)
        torch.nn.init.trunc_normal_(self.head.weight)
    def forward(self, x):
        return self.head(self.norm(self.embed(x)) + self.positions[0])

def net(num_classes=4): return Net(num_classes)

def twice_from_one():
    weight = torch.nn.Parameter(torch.randn(3))
    model = torch.nn.Module()
    model.one, model.two = weight, weight
    return model

def from_parameters():
    model = torch.nn.Linear(2, 2)
    model.register_buffer("scale", model.weight.abs().mean(), persistent=False)
    return model

def reads_values():
    model = torch.nn.Linear(2, 2)
    if model.weight.sum().item() > 0: model.flag = 1
    return model

def bare(num_classes=4):
    model = torch.nn.Module()
    model.token = torch.nn.Parameter(torch.zeros(3))
    model.head = torch.nn.Linear(3, num_classes)
    return model

def wide():
    return torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(8)))
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "nets.py"
    path.write_text(FILE)
    return path


def stored(model, path):
    save_file({name: value.clone() for name, value in model.state_dict().items()}, path)
    return str(path)


@pytest.mark.parametrize("init", ["host", "device", "meta"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float16])
def test_every_way_gives_the_values_of_the_file(file, tmp_path, init, dtype):
    donor = build_model(f"{file}:net")
    donor.norm.running_mean.add_(2)
    path = stored(donor, tmp_path / "w.safetensors")
    model = build_model(f"{file}:net", weights=path, init=init, dtype=dtype)
    wanted = dtype or torch.float32
    state = model.state_dict()
    for name, value in donor.state_dict().items():
        assert torch.equal(state[name], value.to(state[name].dtype)), name
        assert state[name].dtype == (wanted if value.is_floating_point() else value.dtype)
    assert model.tied.weight is model.embed.weight
    assert model.other.alpha is model.alpha
    assert [name for name, p in model.named_parameters() if not p.requires_grad] == ["frozen"]
    assert torch.allclose(model.positions.float(), donor.positions, atol=0.01)
    assert torch.equal(model.mask, donor.mask)
    assert model.positions.dtype == wanted
    assert all(tensor.device.type == "cpu" for tensor in (*model.parameters(), *model.buffers()))
    assert torch.get_default_dtype() == torch.float32


def test_the_seed_decides_on_host_and_device(file):
    for init in ("host", "device"):
        torch.manual_seed(3)
        one = build_model(f"{file}:net", init=init).head.weight
        torch.manual_seed(3)
        assert torch.equal(one, build_model(f"{file}:net", init=init).head.weight)


def test_device_init_never_makes_fp32_weights(file):
    made = set()

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, torch.Tensor) and out.numel() > 100_000:
                made.add(out.dtype)
            return out

    with Watch():
        build_model(f"{file}:wide", init="device", dtype=torch.bfloat16)
    assert made == {torch.bfloat16}


def test_a_file_is_read_one_weight_at_a_time(file, tmp_path):
    """The allocator's own events: at most the model in its final dtype and one weight in fp32."""
    path = stored(build_model(f"{file}:wide"), tmp_path / "w.safetensors")

    def peak(init):
        with torch.profiler.profile(profile_memory=True, activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            model = build_model(f"{file}:wide", weights=path, init=init, dtype=torch.bfloat16)
        del model
        level = highest = 0
        for event in sorted(
            (e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"), key=lambda e: e.start_ns()
        ):
            level += event.nbytes()
            highest = max(highest, level)
        return highest

    weight, final = 512 * 512 * 4, 8 * (512 * 512 + 512) * 2
    for init in ("meta", "host"):
        assert peak(init) < final + 2.2 * weight


def test_a_head_of_other_classes_is_drawn(file, tmp_path):
    path = stored(build_model(f"{file}:net", num_classes=7), tmp_path / "w.safetensors")
    model = build_model(f"{file}:net", num_classes=4, weights=path, init="meta")
    assert model.head.weight.shape == (4, 8)
    assert 0 < model.head.weight.abs().max() <= 8**-0.5  # Linear's own range
    bare = stored(build_model(f"{file}:bare", num_classes=7), tmp_path / "b.safetensors")
    assert build_model(f"{file}:bare", num_classes=2, weights=bare, init="meta").head.bias.shape == (2,)


def test_one_parameter_registered_twice_stays_one(file, tmp_path):
    from safetensors.torch import save_model

    donor = build_model(f"{file}:twice_from_one")
    save_model(donor, str(tmp_path / "w.safetensors"))
    model = build_model(f"{file}:twice_from_one", weights=str(tmp_path / "w.safetensors"), init="meta")
    assert model.one is model.two
    assert torch.equal(model.one, donor.one)


@pytest.mark.parametrize(
    ("spec", "arguments"),
    [
        ("torchvision:efficientnet_b0", {}),
        ("timm:swin_tiny_patch4_window7_224", {"depths": [1, 2]}),
        ("timm:resnet10t", {}),
    ],
)
def test_library_models_compute_the_same_from_meta(tmp_path, spec, arguments):
    donor = build_model(spec, model_args=arguments, num_classes=3).eval()
    path = stored(donor, tmp_path / "w.safetensors")
    model = build_model(spec, model_args=arguments, num_classes=3, weights=path, init="meta").eval()
    image = torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        assert torch.equal(model(image), donor(image))


def test_what_meta_refuses(file, tmp_path):
    with pytest.raises(InputError, match="would be undefined"):
        build_model(f"{file}:net", init="meta")
    with pytest.raises(InputError, match="safetensors"):
        build_model("torchvision:resnet18", init="meta", weights="DEFAULT")
    path = stored(torch.nn.Linear(2, 2), tmp_path / "w.safetensors")
    with pytest.raises(InputError, match="buffer scale of the model is made from parameters"):
        build_model(f"{file}:from_parameters", init="meta", weights=path)
    with pytest.raises(InputError, match="line"):
        build_model(f"{file}:reads_values", init="meta", weights=path)


def test_settings_come_back_after_an_error():
    for context in (default_dtype(torch.bfloat16), parameters_on_meta()):
        with pytest.raises(ZeroDivisionError), context:
            raise ZeroDivisionError
    assert torch.get_default_dtype() == torch.float32
    assert not torch.nn.Linear(1, 1).weight.is_meta
