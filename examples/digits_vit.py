"""The demo's model: a small vision transformer that learns the digits data in seconds on a CPU.

    snugfit train examples/digits_vit.py:model --data digits --lr 2e-3 --lr-schedule cosine --warmup-steps 20 --epochs 5

It is torchvision's own VisionTransformer, about 0.45 million parameters in 4 blocks, so every technique meets a real one.
"""

import torch
from torch import nn
from torchvision.models import VisionTransformer


def model(num_classes: int = 10) -> nn.Module:
    """Builds the transformer for 16x16 colour images cut into 4x4 patches.

    Args:
        num_classes: Outputs of the head.

    Returns:
        The model; it takes float images `[B, 3, 16, 16]` and gives scores `[B, num_classes]`.
    """
    vit = VisionTransformer(
        image_size=16,
        patch_size=4,
        num_layers=4,
        num_heads=2,  # few: on a CPU the 16-bit attention kernel takes its time by head
        hidden_dim=96,
        mlp_dim=384,
        num_classes=num_classes,
    )
    # torchvision starts positions at 0.02, for long training on millions of images. Beside patches of unit size that is
    # nothing, and on a thousand images the model would need twice the time to learn where each patch belongs.
    with torch.no_grad():
        vit.encoder.pos_embedding.normal_(std=1.0)
    return vit
