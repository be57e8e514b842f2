"""Heads and bodies, found by structure."""

import pytest
import torch
from torch import nn

from snugfit.techniques.linear_layers import linear_layers, tied_weights


def of_transformers(name, **changes):
    import transformers

    sizes = {
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "vocab_size": 40,
    }
    kind = getattr(transformers, name)
    return kind(kind.config_class(**{**sizes, **changes}))


def of_timm(name, **arguments):
    timm = pytest.importorskip("timm")
    return timm.create_model(name, num_classes=7, **arguments)


def of_torchvision(name, **arguments):
    return __import__("torchvision").models.get_model(name, num_classes=7, **arguments)


class Bag(nn.Module):
    def __init__(self, tied):
        super().__init__()
        self.table, self.mix, self.last = nn.Embedding(30, 8), nn.Linear(8, 8), nn.Linear(8, 30, bias=False)
        if tied:
            self.last.weight = self.table.weight


class Counted(nn.Module):
    num_classes = 5

    def __init__(self, outputs):
        super().__init__()
        self.first, self.final = nn.Linear(4, 4), nn.Linear(4, outputs)


CASES = {
    "llama": (lambda: of_transformers("LlamaForCausalLM"), [], ["lm_head"]),
    "llama classifier": (lambda: of_transformers("LlamaForSequenceClassification", pad_token_id=0), ["score"], []),
    "bert": (lambda: of_transformers("BertForSequenceClassification"), ["classifier"], []),
    "roberta": (lambda: of_transformers("RobertaForSequenceClassification"), ["classifier"], []),
    "distilbert": (
        lambda: of_transformers("DistilBertForSequenceClassification", dim=16, hidden_dim=32, n_heads=2, n_layers=1),
        ["pre_classifier", "classifier"],
        [],
    ),
    "gpt2": (lambda: of_transformers("GPT2LMHeadModel", n_embd=16, n_head=2, n_layer=1), [], ["lm_head"]),
    "timm vit": (lambda: of_timm("vit_tiny_patch16_224", img_size=16, depth=1), ["head"], []),
    "timm convnext": (lambda: of_timm("convnext_atto"), ["head.fc"], []),
    "timm distilled": (lambda: of_timm("deit_tiny_distilled_patch16_224", depth=1), ["head", "head_dist"], []),
    "resnet": (lambda: of_torchvision("resnet18"), ["fc"], []),
    "mobilenet": (lambda: of_torchvision("mobilenet_v3_small"), ["classifier.3"], []),
    "tied": (lambda: Bag(True), [], ["last"]),
    "untied": (lambda: Bag(False), [], ["last"]),
    "as many outputs as classes": (lambda: Counted(5), ["final"], []),
    "another number of outputs": (lambda: Counted(6), [], []),
    "nothing said": (lambda: nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2)), [], []),
    "no linear layer": (lambda: nn.Sequential(nn.Conv2d(3, 3, 1)), [], []),
}


@pytest.mark.parametrize("name", CASES)
def test_heads(name):
    make, classifier, output = CASES[name]
    with torch.device("meta"):
        model = make()
    found = linear_layers(model)
    assert (list(found.classifier), list(found.output)) == (classifier, output)
    heads = tuple(f"{head}." for head in (*classifier, *output))
    assert not any(f"{layer}.".startswith(heads) for layer in found.body if heads)


def test_bodies():
    with torch.device("meta"):
        assert list(linear_layers(CASES["gpt2"][0]()).body) == [
            f"transformer.h.0.{part}" for part in ("attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj")
        ]
        vit = linear_layers(of_torchvision("vit_b_16"))
    assert {name.rpartition("encoder_layer_")[2].partition(".")[2] for name in vit.body} == {"mlp.0", "mlp.3"}
    assert list(vit.classifier) == ["heads.head"]


def test_tied_weights():
    model = Bag(True)
    assert tied_weights(model) == {model.table.weight}
    assert tied_weights(Bag(False)) == set()
