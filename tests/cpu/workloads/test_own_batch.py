"""Models of one's own that say what they are trained on, and return their loss."""

import pytest
import torch

from snugfit.errors import InputError
from snugfit.workloads.model_batches import batch_for
from snugfit.workloads.models import build_model

MODEL = """
import torch

class Pairs(torch.nn.Linear):
    def forward(self, left, right):
        return (self(left) - right).square().mean()

    def training_batch(self, batch_size{}):
        return {}

def build():
    return Pairs(4, 4)
"""


def test_sizes_that_the_method_takes_reach_it(tmp_path):
    for argument, given, shape in (
        ("", {}, (3, 8)),
        (", seq_len=8", {}, (3, 8)),
        (", seq_len=8", {"seq_len": 5}, (3, 5)),
    ):
        made = made_by(tmp_path, argument, f"torch.rand(batch_size, {'seq_len' if argument else 8})", **given)
        assert made.batch.shape == shape and made.batch.device.type == "meta"
        assert made.task.loss is None and made.task.arguments()["loss_weight"] == "samples"


@pytest.mark.parametrize(
    ("returned", "given", "said"),
    [
        ("None", {}, "returned no tensors"),
        (
            "torch.rand(batch_size, self.wide)",
            {},
            r"AttributeError.*\(line 9: return torch.rand\(batch_size, self.wide\)\)",
        ),
        ("torch.rand(batch_size, 4)", {"image_size": 32}, "--image-size has no meaning for training_batch"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, returned, given, said):
    with pytest.raises(InputError, match=said):
        made_by(tmp_path, "", returned, **given)


def made_by(folder, argument, returned, **given):
    file = folder / "model.py"
    file.write_text(MODEL.format(argument, returned))
    spec = f"{file}:build"
    return batch_for(build_model(spec), spec, "image-classification", batch_size=3, **given)


@pytest.mark.parametrize(
    ("function", "parameters"),
    [
        ("segmentation_unet.py:build", 31_038_933),
        ("yolo.py:nano", 3_157_184),
        ("yolo.py:medium", 25_902_624),
        ("sdxl_unet.py:build", 2_567_463_684),
    ],
)
def test_known_models_are_as_large_as_their_makers_say(function, parameters):
    model = build_model(f"examples/{function}", device="meta", init="device")
    assert sum(one.numel() for one in model.parameters()) == parameters


@pytest.mark.parametrize(
    ("function", "arguments"),
    [("segmentation_unet.py:build", ("width=8",)), ("yolo.py:nano", ()), ("sdxl_unet.py:small", ())],
)
def test_known_models_are_predicted_as_they_are_measured(function, arguments, pool):
    for library in ("transformers", "torchvision", "timm"):
        pytest.importorskip(library)
    from benchmarks.zoo_models import subject
    from benchmarks.zoo_row import compared

    row = compared(subject.library("examples", f"examples/{function}", model_args=arguments, image_size=64), pool)
    assert row["measured_bytes"] > 1_000_000 and abs(row["ratio"] - 1) < 0.001, row


def test_a_detector_is_told_where_things_are():
    """The loss of an image is its own; it is smallest where its objects' own cells say their boxes and classes."""
    torch.manual_seed(0)
    model = build_model("examples/yolo.py:nano").eval()
    batch = model.training_batch(2, 64)
    alone = [model(**{name: part[at : at + 1] for name, part in batch.items()}) for at in range(2)]
    torch.testing.assert_close(model(**batch), sum(alone) / 2)
    cells = torch.full((1, 64 + 16 + 4, 4 * 16 + 80), -4.0, requires_grad=True)
    box, label = torch.tensor([[[18.0, 9.0, 40.0, 57.0]]]), torch.tensor([[7]])  # not larger than cells of 8 pixels see
    optimizer = torch.optim.Adam([cells], 0.1)
    for _ in range(200):
        optimizer.zero_grad()
        loss = model.loss(cells, box, label, 64)
        loss.backward()
        optimizer.step()
    assert loss < 1.5 * 4 * 0.7  # a side between two whole numbers costs up to the logarithm of 2
    place = int(cells[0, :, 4 * 16 + 7].argmax())
    assert place == 8 * (33 // 8) + 29 // 8
    sides = cells[0, place, : 4 * 16].unflatten(0, (4, 16)).softmax(1) @ torch.arange(16.0)
    middle = torch.tensor([29 // 8 + 0.5, 33 // 8 + 0.5])
    found = 8 * torch.cat([middle - sides[:2], middle + sides[2:]])
    torch.testing.assert_close(found, box[0, 0], atol=0.5, rtol=0)
