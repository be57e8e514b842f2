"""Where the foreign code is from: a commit of each repository, and what they import besides.

Nothing of it is in this repository. A folder holds a checkout of each repository as `OWNER__NAME`, and `packages`, where pip
has put what they import; `commands` says how it gets there.
"""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path


@dataclasses.dataclass(frozen=True)
class Source:
    """A repository, as it was when its row was written."""

    commit: str
    """The commit."""
    folders: tuple[str, ...] = ("",)
    """Its folders from which its code imports."""


SOURCES: dict[str, Source] = {
    "Blealtan/efficient-kan": Source("7b6ce1c87f18c8bc90c208f6b494042344216b11", ("src",)),
    "BlinkDL/RWKV-LM": Source("524481d5099b38d9bc8ef1e89209161b86c8011b", ("RWKV-v1",)),
    "codertimo/BERT-pytorch": Source("d10dc4f9d5a6f2ca74380f62039526eb7277c671"),
    "Diego999/pyGAT": Source("3664f2dc90cbf971564c0bf186dc794f12446d0c"),
    "dragen1860/MAML-Pytorch": Source("98a00d41724c133bd29619a2fb2cc46dd128a368"),
    "eriklindernoren/PyTorch-GAN": Source("36d3c77e5ff20ebe0aeefd322326a134a279b93e"),
    "facebookresearch/barlowtwins": Source("8e8d284ca0bc02f88b92328e53f9b901e86b4a3c"),
    "facebookresearch/dino": Source("7c446df5b9f45747937fb0d72314eb9f7b66930a"),
    "facebookresearch/DiT": Source("ed81ce2229091fd4ecc9a223645f95cf379d582b"),
    "facebookresearch/dlrm": Source("090956ee2319ddd349a42232958aefccfe3f7b0a"),
    "facebookresearch/esm": Source("2b369911bb5b4b0dda914521b9475cad1656b2ac"),
    "facebookresearch/mae": Source("efb2a8062c206524e35e47d04501ed4f544c0ae8"),
    "fxia22/pointnet.pytorch": Source("bafbf401e0af19be3262e448c59313fd2be0e421"),
    "husnejahan/DeepAR-pytorch": Source("e9ad9d89231118e402973bccaca163e0ec6ccb25"),
    "hyunwoongko/transformer": Source("63286547b9cd174a6cfc204832271814d685181f"),
    "ikostrikov/pytorch-flows": Source("bf12ed91b86867b38d74982f5e2d44c248604df9"),
    "jadore801120/attention-is-all-you-need-pytorch": Source("132907dd272e2cc92e3c10e6c4e783a87ff8893d"),
    "johnma2006/mamba-minimal": Source("03de542a36d873f6e6c4057ad687278cc6ae944d"),
    "karpathy/minGPT": Source("37baab71b9abea1b76ab957409a1cc2fbfba8a26"),
    "karpathy/nanochat": Source("92d63d4e8bb4df75c3b71618f31ddde2378b2bcd"),
    "karpathy/nanoGPT": Source("3adf61e154c3fe3fca428ad6bc3818b27a3b8291"),
    "kuangliu/pytorch-cifar": Source("49b7aa97b0c12fe0d4054e670403a16b6b834ddd"),
    "leftthomas/SRGAN": Source("7ddfdf27273c42d858ec52cab5ca1cbfca81d0be"),
    "locuslab/TCN": Source("2f8c2b817050206397458dfd1f5a25ce8a32fe65"),
    "lucidrains/byol-pytorch": Source("299312613c1f44923e7869d1c82be7d536c2c42b"),
    "lucidrains/denoising-diffusion-pytorch": Source("faed4db28e724735323fa91c70aa9b28a6e1cbac"),
    "lucidrains/perceiver-pytorch": Source("96097c6a27cc64fc1f196d3a58d32b8a82f573e1"),
    "lucidrains/reformer-pytorch": Source("66a19b6caf481a880c97d331306aba55d2ae4b9c"),
    "lucidrains/tab-transformer-pytorch": Source("10c258aa7ecf8c7e948e38c104a87caed49a6a9a"),
    "lucidrains/vector-quantize-pytorch": Source("0d7d1aa83334b6f2f8a40306bece75cdaa13d065", ("examples", "")),
    "lucidrains/vit-pytorch": Source("69d24fe9e3024c0d4b02761123b8583a24ebed1e"),
    "lucidrains/x-transformers": Source("9252ed7838021ee61e6c5be0930b3a9a88efdf06"),
    "lukasruff/Deep-SVDD-PyTorch": Source("1901612d595e23675fb75c4ebb563dd0ffebc21e", ("src",)),
    "milesial/Pytorch-UNet": Source("21d7850f2af30a9695bbeea75f3136aa538cfc4a"),
    "mlfoundations/open_clip": Source("89fb801f1e6087880e951fc8354b8a2077b79c6d", ("src",)),
    "neuraloperator/neuraloperator": Source("93d3f0633e048c915004cd782cb339acf06e1157"),
    "openai/CLIP": Source("d05afc436d78f1c48dc0dbf8e5980a9d471f35f6"),
    "openai/improved-diffusion": Source("1bc7bbbdc414d83d4abf2ad8cc1446dc36c4e4d5"),
    "openai/whisper": Source("c0d2f624c09dc18e709e37c2ad90c039a4eb72a2"),
    "pranz24/pytorch-soft-actor-critic": Source("c1805660b3961694be54079a355155a5cad492f5"),
    "pyg-team/pytorch_geometric": Source("5c6461b2305ad068a6d61165b3c55852a11aaa41"),
    "pytorch/examples": Source("77f55b912142e11fcfdf5b530231fb9c52f181e8", ("", "word_language_model")),
    "qubvel/segmentation_models.pytorch": Source("bd7f877fec51309a1a7de7670aed232954450037"),
    "rosinality/glow-pytorch": Source("97081ff115a694cf04aeedbd58447f33d242c879"),
    "rosinality/vq-vae-2-pytorch": Source("ef5f67c46f93624163776caec9e0d95063910eca"),
    "rtqichen/torchdiffeq": Source("657943acefa826ef04c025ebeb1ff5e9d60dc268"),
    "sooftware/conformer": Source("b4e7d44944214db6e5912f92ff43d5ea1919eaa2"),
    "sthalles/SimCLR": Source("1848fc934ad844ae630e6c452300433fe99acfd9"),
    "suragnair/alpha-zero-general": Source("f1a78e0505c614205f8c60eaa82cd644a07a84b3"),
    "thuml/Time-Series-Library": Source("4e938a1767106324dd753b2a44832bf870a0252e"),
    "tkipf/pygcn": Source("1600b5b748b3976413d1e307540ccc62605b4d6d"),
    "ultralytics/yolov5": Source("5081342f04fb287fc2e5f2b5a4e06752b7937b1c"),
    "vsitzmann/siren": Source("4df34baee3f0f9c8f351630992c1fe1f69114b5f"),
    "vwxyzjn/cleanrl": Source("fe8d8a03c41a7ef5b523e2e354bd01c363e786bb"),
    "yenchenlin/nerf-pytorch": Source("63a5a630c9abd62b0f21c08703d0ac2ea7d4b9dd"),
    "yuqinie98/PatchTST": Source("204c21efe0b39603ad6e2ca640ef5896646ab1a9", ("PatchTST_supervised",)),
    "zhouhaoyi/Informer2020": Source("29f2a739226a509202a092b464163da81fa74960"),
}
"""Repository -> where to find it."""

PACKAGES: tuple[str, ...] = (
    "einops==0.8.2",
    "einx==0.4.3",
    "frozendict==2.5.1",
    "ftfy==6.3.1",
    "wcwidth==0.9.4",
    "gymnasium==1.4.0",
    "farama-notifications==0.0.6",
    "jaxtyping==0.3.11",
    "wadler-lindig==0.1.8",
    "torch-einops-utils==0.2.0",
    "hyper-connections==0.4.11",
    "rotary-embedding-torch==0.9.1",
    "axial-positional-embedding==0.3.12",
    "local-attention==1.11.2",
    "product-key-memory==0.3.0",
    "assoc-scan==0.0.6",
    "ema-pytorch==0.8.3",
    "loguru==0.7.3",
    "more-itertools==11.2.1",
    "tiktoken==0.14.0",
    "pytorch-fid==0.3.0",
    "six==1.17.0",
    "certifi",
    "idna",
    "requests",
    "urllib3",
    "charset-normalizer",
    "beartype",
    "pretrainedmodels",
    "munch",
    "efficientnet-pytorch",
    "numba",
    "llvmlite",
    "x-mlps-pytorch",
    "discrete-continuous-embed-readout",
    "fire",
    "termcolor",
    "imageio",
    "h5py",
    "colt5-attention",
    "tyro",
    "tensorly",
    "tensorly-torch",
    "opt-einsum",
    "ultralytics",
    "opencv-python-headless",
    "scikit-image",
    "lazy-loader",
    "tifffile",
)
"""What the repositories import and snugfit does not."""


def folder_of(repository: str, sources: Path) -> Path:
    """Returns where a repository lies.

    Args:
        repository: As `owner/name`.
        sources: The folder of all.
    """
    return sources / repository.replace("/", "__")


def missing(sources: Path) -> list[str]:
    """Returns the repositories that a folder does not have.

    Args:
        sources: The folder of all.
    """
    return [repository for repository in SOURCES if not folder_of(repository, sources).is_dir()]


def commands(sources: Path) -> list[str]:
    """Returns what to type to fill a folder.

    Args:
        sources: The folder of all.
    """
    lines = [f"pip install --no-deps --target {sources / 'packages'} {' '.join(PACKAGES)}"]
    for repository, source in SOURCES.items():
        folder = folder_of(repository, sources)
        lines.append(f"git clone https://github.com/{repository} {folder} && git -C {folder} checkout {source.commit}")
    return lines


def put_on_path(repository: str, sources: Path) -> None:
    """Lets this process import a repository's code.

    Args:
        repository: As `owner/name`.
        sources: The folder of all.
    """
    here = folder_of(repository, sources)
    if not here.is_dir():
        raise FileNotFoundError(f"no {here.name} in the folder of sources; --commands says how it gets there")
    sys.path[:0] = [str(here / folder) for folder in SOURCES[repository].folders]
    sys.path.append(str(sources / "packages"))  # behind what is installed
