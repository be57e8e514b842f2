"""Libraries that are not there: the line says which one is needed, and how to get it; nothing is written."""

import sys

import pytest
from wrong_lines import check, wrong

INSTALL = "pip install"
MISSING = {
    "timm": [wrong("train timm:resnet18 --data digits", "timm", INSTALL)],
    "torchvision.models": [wrong("train torchvision:resnet18 --data digits", "torchvision", INSTALL)],
    "transformers": [
        wrong("train hf:llama/config.json --data prose", "transformers", INSTALL),
        wrong("train hf:llama --data random", "transformers", INSTALL),
    ],
    "pyarrow": [wrong("train hf:llama/config.json --data parquet:broken.parquet --seq-len 16", "pyarrow", INSTALL)],
    "datasets": [wrong("train hf:llama/config.json --data hf:nothing --seq-len 16", "datasets", INSTALL)],
    "sklearn.datasets": [wrong("train model.py:build --data digits", "digits", INSTALL)],
    "torch.utils.tensorboard": [
        wrong("train model.py:build --data random --image-size 8 --log-to tensorboard", "snugfit[report]", INSTALL)
    ],
    "wandb": [wrong("train model.py:build --data random --image-size 8 --log-to wandb", "snugfit[wandb]", INSTALL)],
}


@pytest.mark.parametrize("library", MISSING)
def test_a_library_that_is_missing_is_named(broken_folder, capsys, monkeypatch, library):
    monkeypatch.setitem(sys.modules, library, None)
    for line in MISSING[library]:
        check(line, broken_folder, capsys)
