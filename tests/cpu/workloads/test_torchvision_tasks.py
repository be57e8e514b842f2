"""Models of torchvision for segments, boxes and video: the task, the batch and the losses of its training scripts."""

import pytest
import torch
import torch.nn.functional as F

from snugfit.errors import InputError
from snugfit.workloads.model_batches import batch_for, task_of
from snugfit.workloads.models import build_model
from snugfit.workloads.torchvision_tasks import OBJECTS

pytest.importorskip("torchvision")

SMALL = ("min_size=32", "max_size=32")


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("resnet18", "image-classification"),
        ("fcn_resnet50", "semantic-segmentation"),
        ("lraspp_mobilenet_v3_large", "semantic-segmentation"),
        ("r3d_18", "video-classification"),
        ("fasterrcnn_resnet50_fpn", "object-detection"),
    ],
)
def test_the_builder_says_the_task(name, task):
    assert task_of(f"torchvision:{name}", None) == task == task_of(f"torchvision:{name}", task)
    with pytest.raises(InputError, match="Leave --task out"):
        task_of(f"torchvision:{name}", "ctc")


def test_segmentation_adds_half_the_auxiliary_loss():
    spec = "torchvision:deeplabv3_mobilenet_v3_large"
    model = build_model(spec, model_args={"aux_loss": True, "num_classes": 5}).eval()
    made = batch_for(model, spec, "semantic-segmentation", batch_size=2, image_size=32, device="cpu")
    images, labels = made.batch
    assert labels.shape == (2, 32, 32) and int(labels.max()) < 5
    with torch.no_grad():
        output = model(images)
        expected = F.cross_entropy(output["out"], labels) + 0.5 * F.cross_entropy(output["aux"], labels)
        assert torch.equal(made.task.loss(output, made.batch), expected)
    assert batch_for(model, spec, "semantic-segmentation", batch_size=1).batch[0].shape == (1, 3, 520, 520)


def test_clips_have_the_length_that_weights_state():
    model = torch.nn.Linear(2, 2)
    video = {"task": "video-classification", "batch_size": 1}
    made = batch_for(model, "torchvision:mvit_v2_s", **video)
    assert made.batch[0].shape == (1, 3, 16, 224, 224) and "16 frames" in made.assumed[0]
    assert batch_for(model, "torchvision:r3d_18", **video, frames=4).batch[0].shape == (1, 3, 4, 112, 112)
    with pytest.raises(InputError, match="--frames has no meaning"):
        batch_for(model, "torchvision:resnet18", "image-classification", batch_size=1, frames=4)


@pytest.mark.parametrize(
    "name", ["fasterrcnn_mobilenet_v3_large_320_fpn", "maskrcnn_resnet50_fpn", "ssdlite320_mobilenet_v3_large"]
)
def test_a_detector_trains_on_its_batch(name):
    spec = f"torchvision:{name}"
    arguments = {} if name.startswith("ssd") else {"min_size": 64, "max_size": 64, "box_batch_size_per_image": 16}
    model = build_model(spec, model_args=arguments)
    made = batch_for(model, spec, "object-detection", batch_size=2, device="cpu")
    images, targets = made.batch
    assert len(images) == len(targets) == 2 and targets[0]["boxes"].shape == (OBJECTS, 4)
    assert ("masks" in targets[0]) == name.startswith("mask")
    loss = made.task.forward(model, made.batch)
    loss.backward()
    assert loss.dim() == 0 and torch.isfinite(loss)
    model.eval()
    with torch.no_grad():
        assert made.task.forward(model, made.batch).dim() == 0
    assert not any(module.training for module in model.modules())
    assert [len(piece[0]) for piece in made.task.split(made.batch, 1)] == [1, 1]
