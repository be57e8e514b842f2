"""What scripts of other projects would download, made of random values where they look for it."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import struct
from pathlib import Path


def mnist(folder: Path) -> None:
    """MNIST's files beside the folder and in it, of random pixels."""
    for root in (folder.parent / "data", folder / "data"):
        _mnist_in(root)


def tokens(folder: Path) -> None:
    """NanoGPT's files of tokens."""
    import numpy

    (folder / "data" / "made").mkdir(parents=True, exist_ok=True)
    for part in ("train", "val"):
        (numpy.arange(200_000) % 50257).astype(numpy.uint16).tofile(folder / "data" / "made" / f"{part}.bin")


def words_of_text(folder: Path) -> None:
    """The word-level model's corpus."""
    place = folder / "data" / "wikitext-2"
    place.mkdir(parents=True, exist_ok=True)
    for part in ("train", "valid", "test"):
        (place / f"{part}.txt").write_text(" ".join(f"w{number % 3000}" for number in range(60_000)) + " \n")


def mnist_of_lightning(folder: Path) -> None:
    """MNIST where Lightning's examples look for it."""
    for above in folder.parents[1:3]:
        _mnist_in(above / "Datasets")


def cora(folder: Path) -> None:
    """A graph of papers that cite each other, each with the words it has."""
    import numpy

    draw, place = numpy.random.default_rng(0), folder / "cora"
    place.mkdir(exist_ok=True)
    words = draw.integers(0, 2, (2708, 1433))
    rows = [f"{paper} {' '.join(map(str, row))} topic{paper % 7}" for paper, row in enumerate(words.tolist())]
    (place / "cora.content").write_text("\n".join(rows))
    cites = {(one, other) for one, other in draw.integers(0, 2708, (5429, 2)).tolist()}
    (place / "cora.cites").write_text("\n".join(f"{one} {other}" for one, other in sorted(cites)))


def photographs(folder: Path) -> None:
    """The photographs of BSDS300."""
    for part in ("train", "test"):
        _images(folder / "dataset" / "BSDS300" / "images" / part, 80, (320, 320))


def carvana(folder: Path) -> None:
    """Photographs of cars and their masks."""
    _images(folder / "data" / "imgs", 40, (160, 160))
    _images(folder / "data" / "masks", 40, (160, 160), "_mask.png", two_levels=True)


def image_folder(folder: Path) -> None:
    """Images in a folder for each class, and the configuration of a small model."""
    for part in ("train", "validation"):
        for label in ("cat", "dog"):
            _images(folder / "made" / part / label, 40, (240, 240))
    _model(folder / "small-vit", "vit", image_size=224, **_SMALL)
    (folder / "small-vit" / "preprocessor_config.json").write_text(
        json.dumps({"image_processor_type": "ViTImageProcessor", "size": {"height": 224, "width": 224}})
    )
    _accuracy(folder)


def images_to_make(folder: Path) -> None:
    """Images, and the configuration of a small U-Net that is to make such."""
    _images(folder / "made" / "train", 80, (40, 40))
    down, up = ["DownBlock2D", "AttnDownBlock2D"], ["AttnUpBlock2D", "UpBlock2D"]
    channels = {"in_channels": 3, "out_channels": 3, "block_out_channels": [64, 128]}
    blocks = {"down_block_types": down, "up_block_types": up, "layers_per_block": 1}
    (folder / "small-unet").mkdir(exist_ok=True)
    (folder / "small-unet" / "config.json").write_text(
        json.dumps({"_class_name": "UNet2DModel", "sample_size": 32, **channels, **blocks})
    )


def text(folder: Path) -> None:
    """Lines of words, a tokenizer of them, and the configurations of small models."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    names = ["<pad>", "<s>", "</s>", "<unk>", *(f"w{number}" for number in range(1000))]
    words = Tokenizer(models.WordLevel({name: number for number, name in enumerate(names)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    special = {"pad_token": "<pad>", "eos_token": "</s>", "bos_token": "<s>", "unk_token": "<unk>"}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=512, **special)
    sizes = {"vocab_size": len(names), "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    _model(folder / "small-gpt2", "gpt2", head="AutoModelForCausalLM", n_embd=192, n_layer=4, n_head=3, **sizes)
    _model(folder / "small-bert", "bert", **_SMALL, **sizes)
    for name in ("small-gpt2", "small-bert"):
        tokenizer.save_pretrained(folder / name)
    lines = [" ".join(f"w{(7 * line + place) % 1000}" for place in range(20 + line % 60)) for line in range(600)]
    for part in ("train", "validation"):
        (folder / f"{part}.txt").write_text("\n".join(lines))
        rows = [f"{words},{number % 2}" for number, words in enumerate(lines)]
        (folder / f"{part}.csv").write_text("\n".join(["sentence,label", *rows]))
    _accuracy(folder)


def texts_to_continue(folder: Path) -> None:
    """A small model for text, and a data set of texts."""
    text(folder)
    (folder / "texts").mkdir(exist_ok=True)
    lines = (folder / "train.txt").read_text().splitlines()
    (folder / "texts" / "train.jsonl").write_text("\n".join(json.dumps({"text": line}) for line in lines))


def paraphrases(folder: Path) -> None:
    """Pairs of sentences, a metric of them and a small BERT, by the names under which a hub has the real ones."""
    text(folder)
    shutil.copytree(folder / "small-bert", folder / "bert-base-cased", dirs_exist_ok=True)
    pairs = folder / "nyu-mll" / "glue"
    pairs.mkdir(parents=True, exist_ok=True)
    lines = (folder / "train.txt").read_text().splitlines()
    pairs_of = enumerate(itertools.pairwise(lines))
    rows = [f"{number},{one},{other},{number % 2}" for number, (one, other) in pairs_of]
    parts = ("train", "validation", "test")
    for part in parts:
        (pairs / f"{part}.csv").write_text("\n".join(["idx,sentence1,sentence2,label", *rows]))
    files = "".join(f"  - split: {part}\n    path: {part}.csv\n" for part in parts)
    (pairs / "README.md").write_text(f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{files}---\n")
    shutil.copytree(pairs, folder / "glue", dirs_exist_ok=True)
    shutil.copy(folder / "accuracy" / "accuracy.py", folder / "glue" / "glue.py")


def _mnist_in(root: Path) -> None:
    raw = root / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 60000), ("t10k", 10000)):
        images, labels = os.urandom(count * 784), bytes(number % 10 for number in range(count))
        (raw / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + images)
        (raw / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels)


def _images(folder: Path, count: int, size: tuple[int, int], ending: str = ".jpg", *, two_levels: bool = False) -> None:
    import numpy
    from PIL import Image

    draw = numpy.random.default_rng(0)
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(count):
        shape = size if two_levels else (*size, 3)
        values = draw.integers(0, 2, shape) if two_levels else draw.integers(0, 256, shape)
        Image.fromarray(values.astype(numpy.uint8)).save(folder / f"{number}{ending}")


_SMALL = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 3, "intermediate_size": 768}


def _model(folder: Path, kind: str, *, head: str = "AutoModel", **sizes: int) -> None:
    """A small model of transformers with random weights."""
    import transformers

    config = transformers.AutoConfig.for_model(kind, **sizes)
    getattr(transformers, head).from_config(config).save_pretrained(folder)


def _accuracy(folder: Path) -> None:
    """The metric that `evaluate` would download."""
    (folder / "accuracy").mkdir(exist_ok=True)
    (folder / "accuracy" / "accuracy.py").write_text(
        """import datasets
import evaluate
class Accuracy(evaluate.Metric):
    def _info(self):
        kinds = datasets.Features({"predictions": datasets.Value("int32"), "references": datasets.Value("int32")})
        return evaluate.MetricInfo(description="", citation="", features=kinds)
    def _compute(self, predictions, references):
        return {"accuracy": sum(map(int.__eq__, predictions, references)) / len(references)}
"""
    )
