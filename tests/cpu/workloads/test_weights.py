"""Weights from files: what fits is copied, what does not is named, heads follow the number of classes."""

import logging

import pytest
import torch
from safetensors.torch import save_file, save_model

from snugfit.errors import InputError
from snugfit.workloads.heads import replace_heads
from snugfit.workloads.models import build_model
from snugfit.workloads.stored_weights import StoredWeights
from snugfit.workloads.weights import freeze_parameters, load_weights


def small(classes=4, width=8):
    return torch.nn.Sequential(
        torch.nn.Conv2d(1, width, 3), torch.nn.BatchNorm2d(width), torch.nn.Flatten(), torch.nn.Linear(width, classes)
    )


def saved(model, path, **changes):
    state = {name: value.clone() for name, value in model.state_dict().items()}
    state.update(changes)
    save_file({name: value for name, value in state.items() if value is not None}, path)
    return path


def test_a_file_gives_the_same_values(tmp_path):
    one, other = small(), small()
    one[1].running_mean.add_(3)
    load_weights(other, StoredWeights(saved(one, tmp_path / "w.safetensors")))
    for name, value in one.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_head_of_other_classes_stays_fresh_and_is_said(tmp_path, caplog):
    one, other = small(classes=7), small(classes=4)
    before = other[3].weight.detach().clone()
    with caplog.at_level(logging.INFO, logger="snugfit"):
        load_weights(other, StoredWeights(saved(one, tmp_path / "w.safetensors")))
    assert torch.equal(other[3].weight, before)
    assert torch.equal(other[0].weight, one[0].weight)
    assert "head 3: fresh values for 4 classes" in caplog.text
    assert "has 7" in caplog.text


def test_mismatches_are_listed_and_nothing_is_copied(tmp_path):
    model = small()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    path = saved(small(width=9), tmp_path / "w.safetensors", **{"3.bias": None, "extra": torch.zeros(2)})
    with pytest.raises(InputError) as caught:
        load_weights(model, StoredWeights(path))
    message = str(caught.value)
    assert "1 missing in the file (3.bias)" in message
    assert "1 unknown to the model (extra)" in message
    assert "0.weight: file [9, 1, 3, 3], model [8, 1, 3, 3]" in message
    assert "more)" in message  # seven names of another shape are not all listed
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_wider_body_is_no_head(tmp_path):
    with pytest.raises(InputError, match="of another shape"):
        load_weights(small(), StoredWeights(saved(small(width=9), tmp_path / "w.safetensors")))


def test_a_tied_tensor_stored_once_fits(tmp_path):
    def tied():
        model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False))
        model[1].weight = model[0].weight
        return model

    one, other = tied(), tied()
    save_model(one, str(tmp_path / "w.safetensors"))
    stored = StoredWeights(tmp_path / "w.safetensors")
    assert len(stored.shapes) == 1
    load_weights(other, stored)
    assert torch.equal(one[0].weight, other[1].weight)


@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "noise", "pickle"])
def test_files_that_cannot_be_read(tmp_path, damage):
    path = tmp_path / ("w.pth" if damage == "pickle" else "w.safetensors")
    whole = saved(small(), tmp_path / "whole.safetensors").read_bytes()
    contents = {"empty": b"", "cut": whole[: len(whole) // 2], "noise": b"\x07" * 400, "pickle": b"x"}
    if damage in contents:
        path.write_bytes(contents[damage])
    with pytest.raises(InputError, match=path.name.replace(".", r"\.")):
        StoredWeights(path)


def test_build_model_reads_a_file_and_rounds_it(tmp_path):
    donor = build_model("torchvision:resnet18", num_classes=6)
    path = saved(donor, tmp_path / "w.safetensors")
    model = build_model("torchvision:resnet18", num_classes=6, weights=str(path), dtype=torch.bfloat16)
    assert torch.equal(model.fc.weight, donor.fc.weight.to(torch.bfloat16))
    with pytest.raises(InputError, match="does not fit the model"):
        build_model("torchvision:resnet34", num_classes=6, weights=str(path))


def test_library_weights_with_another_head(tmp_path, monkeypatch):
    """torchvision's own loading code, with the file where its download would have put it."""
    from torchvision.models import ResNet18_Weights, resnet18

    monkeypatch.setattr(torch.hub, "_hub_dir", str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    donor = resnet18()
    torch.save(donor.state_dict(), tmp_path / "checkpoints" / ResNet18_Weights.IMAGENET1K_V1.url.rpartition("/")[2])
    model = build_model("torchvision:resnet18", weights="IMAGENET1K_V1", num_classes=5)
    assert model.fc.out_features == 5
    assert torch.equal(model.layer4[1].conv2.weight, donor.layer4[1].conv2.weight)
    same = build_model("torchvision:resnet18", weights="IMAGENET1K_V1")
    assert torch.equal(same.fc.weight, donor.fc.weight)


def test_heads_are_found_by_structure():
    from torchvision.models import googlenet, squeezenet1_1

    model = googlenet(num_classes=1000, aux_logits=True, init_weights=False)
    replace_heads(model, 1000, 3, origin="test")
    assert [model.fc.out_features, model.aux1.fc2.out_features, model.aux2.fc2.out_features] == [3, 3, 3]
    squeeze = squeezenet1_1(num_classes=1000)
    replace_heads(squeeze, 1000, 3, origin="test")
    assert squeeze(torch.zeros(1, 3, 64, 64)).shape == (1, 3)
    with pytest.raises(InputError, match="head of this model was not found"):
        replace_heads(small(classes=4), 1000, 3, origin="test")


def test_freeze_patterns():
    model = small()
    assert freeze_parameters(model, ["0.*", "1.*"]) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    assert [p.requires_grad for p in model.parameters()] == [False] * 4 + [True] * 2
    with pytest.raises(InputError, match=r"'body\.\*' matches no parameter.*0\.weight"):
        freeze_parameters(small(), ["body.*"])
    with pytest.raises(InputError, match="nothing is left to train"):
        freeze_parameters(small(), ["*"])
    assert freeze_parameters(small(), []) == []
