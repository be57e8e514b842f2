"""The U-Net of Stable Diffusion XL, as it is trained: latents with noise in them, and the noise to be found.

    snugfit plan examples/sdxl_unet.py:build --batch-size 8 --adapter lora --precision bf16-mixed --device rtx-4090

Sizes and names of weights are those of diffusers' `UNet2DConditionModel` with the published config (2,567,463,684
parameters), so that its file of weights loads. Images are encoded, and texts embedded, before: neither autoencoder nor text
encoders are part of it.

Source: Podell et al., SDXL, 2023 (arXiv:2307.01952); `unet/config.json` of stabilityai/stable-diffusion-xl-base-1.0.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

TOKENS, POOLED, SIZES = 77, 1280, 6
"""Tokens of a text; values of its pooled embedding; numbers that say how an image was cropped."""
PIXELS = 8
"""Pixels of an image, each way, in one of its latents."""


def waves(values: Tensor, width: int) -> Tensor:
    """Sinusoidal embedding `[N, width]` of numbers `[N]`."""
    steps = torch.arange(width // 2, device=values.device, dtype=torch.float32)
    angles = values.float()[:, None] * torch.exp(-math.log(10_000) / (width // 2) * steps)
    return torch.cat([angles.cos(), angles.sin()], dim=1)


class Embedding(nn.Module):
    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.linear_1, self.linear_2 = nn.Linear(inputs, width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        return self.linear_2(F.silu(self.linear_1(x)))


class Residual(nn.Module):
    def __init__(self, inputs: int, outputs: int, time_width: int):
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(32, inputs, eps=1e-5), nn.Conv2d(inputs, outputs, 3, padding=1)
        self.time_emb_proj = nn.Linear(time_width, outputs)
        self.norm2, self.conv2 = nn.GroupNorm(32, outputs, eps=1e-5), nn.Conv2d(outputs, outputs, 3, padding=1)
        self.conv_shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        hidden = self.conv1(F.silu(self.norm1(x))) + self.time_emb_proj(F.silu(time))[:, :, None, None]
        return self.conv_shortcut(x) + self.conv2(F.silu(self.norm2(hidden)))


class Attention(nn.Module):
    def __init__(self, width: int, context_width: int, head: int):
        super().__init__()
        self.head = head
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_k, self.to_v = (nn.Linear(context_width, width, bias=False) for _ in range(2))
        self.to_out = nn.ModuleList([nn.Linear(width, width)])

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        query, key, value = (
            one.unflatten(2, (-1, self.head)).transpose(1, 2)
            for one in (self.to_q(x), self.to_k(context), self.to_v(context))
        )
        found = F.scaled_dot_product_attention(query, key, value)
        return self.to_out[0](found.transpose(1, 2).flatten(2))


class GatedLinear(nn.Module):
    def __init__(self, width: int, outputs: int):
        super().__init__()
        self.proj = nn.Linear(width, 2 * outputs)

    def forward(self, x: Tensor) -> Tensor:
        values, gate = self.proj(x).chunk(2, dim=-1)
        return values * F.gelu(gate)


class FeedForward(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.net = nn.Sequential(GatedLinear(width, 4 * width), nn.Identity(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Block(nn.Module):
    def __init__(self, width: int, context_width: int, head: int):
        super().__init__()
        self.norm1, self.attn1 = nn.LayerNorm(width), Attention(width, width, head)
        self.norm2, self.attn2 = nn.LayerNorm(width), Attention(width, context_width, head)
        self.norm3, self.ff = nn.LayerNorm(width), FeedForward(width)

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        normed = self.norm1(x)
        x = x + self.attn1(normed, normed)
        x = x + self.attn2(self.norm2(x), context)
        return x + self.ff(self.norm3(x))


class Transformer(nn.Module):
    """Every place of a picture attends to all others, and to the text."""

    def __init__(self, width: int, depth: int, context_width: int, head: int):
        super().__init__()
        self.norm = nn.GroupNorm(32, width, eps=1e-6)
        self.proj_in, self.proj_out = nn.Linear(width, width), nn.Linear(width, width)
        self.transformer_blocks = nn.ModuleList(Block(width, context_width, head) for _ in range(depth))

    def forward(self, x: Tensor, context: Tensor) -> Tensor:
        hidden = self.proj_in(self.norm(x).flatten(2).transpose(1, 2))
        for block in self.transformer_blocks:
            hidden = block(hidden, context)
        return x + self.proj_out(hidden).transpose(1, 2).reshape(x.shape)


class Resampled(nn.Module):
    """A convolution that halves a picture, or follows its doubling."""

    def __init__(self, width: int, stride: int):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, stride=stride, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(x if self.conv.stride[0] == 2 else F.interpolate(x, scale_factor=2.0, mode="nearest"))


def level(inputs: Sequence[int], width: int, depth: int, sizes: tuple[int, int, int]) -> nn.ModuleDict:
    """Residual blocks of one resolution, each with a transformer where the level has some."""
    time_width, context_width, head = sizes
    parts = nn.ModuleDict({"resnets": nn.ModuleList(Residual(one, width, time_width) for one in inputs)})
    if depth:
        parts["attentions"] = nn.ModuleList(Transformer(width, depth, context_width, head) for _ in inputs)
    return parts


def taken(parts: nn.ModuleDict, number: int, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
    """What comes out of a residual block of a level, and of its transformer."""
    x = parts["resnets"][number](x, time)
    return parts["attentions"][number](x, context) if "attentions" in parts else x


class Middle(nn.Module):
    def __init__(self, width: int, depth: int, sizes: tuple[int, int, int]):
        super().__init__()
        self.resnets = nn.ModuleList(Residual(width, width, sizes[0]) for _ in range(2))
        self.attentions = nn.ModuleList([Transformer(width, depth, *sizes[1:])])

    def forward(self, x: Tensor, time: Tensor, context: Tensor) -> Tensor:
        return self.resnets[1](self.attentions[0](self.resnets[0](x, time), context), time)


class UNet(nn.Module):
    def __init__(self, widths: Sequence[int], depths: Sequence[int], context_width: int, head: int = 64, each: int = 2):
        super().__init__()
        first, last, time_width = widths[0], widths[-1], 4 * widths[0]
        sizes = (time_width, context_width, head)
        self.context_width = context_width
        self.conv_in = nn.Conv2d(4, first, 3, padding=1)
        self.time_embedding = Embedding(first, time_width)
        self.add_embedding = Embedding(POOLED + SIZES * 256, time_width)
        self.down_blocks, self.up_blocks = nn.ModuleList(), nn.ModuleList()
        kept, before = [first], first  # widths of what goes from the left side to the right
        for number, (width, depth) in enumerate(zip(widths, depths, strict=True), start=1):
            deepest = number == len(widths)
            self.down_blocks.append(level([before] + [width] * (each - 1), width, depth, sizes))
            if not deepest:
                self.down_blocks[-1]["downsamplers"] = nn.ModuleList([Resampled(width, 2)])
            kept += [width] * (each if deepest else each + 1)
            before = width
        self.mid_block = Middle(last, depths[-1], sizes)
        for width, depth in zip(reversed(widths), reversed(depths), strict=True):
            inputs = [(before if number == 0 else width) + kept.pop() for number in range(each + 1)]
            self.up_blocks.append(level(inputs, width, depth, sizes))
            if kept:
                self.up_blocks[-1]["upsamplers"] = nn.ModuleList([Resampled(width, 1)])
            before = width
        self.conv_norm_out, self.conv_out = nn.GroupNorm(32, first, eps=1e-5), nn.Conv2d(first, 4, 3, padding=1)

    def forward(
        self,
        sample: Tensor,
        timestep: Tensor,
        encoder_hidden_states: Tensor,
        text_embeds: Tensor,
        time_ids: Tensor,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Returns the noise that is found in `sample`; where `noise` is given, how far the two are apart.

        `sample`, `noise`: `[B, 4, S, S]`. `timestep`: `[B]`. `encoder_hidden_states`: `[B, 77, 2048]`.
        `text_embeds`: `[B, 1280]`. `time_ids`: `[B, 6]`.
        """
        crop = waves(time_ids.flatten(), 256).reshape(len(sample), -1).to(sample.dtype)
        when = waves(timestep, self.conv_in.out_channels).to(sample.dtype)
        time = self.time_embedding(when) + self.add_embedding(torch.cat([text_embeds, crop], dim=1))
        x, text = self.conv_in(sample), encoder_hidden_states
        kept = [x]
        for parts in self.down_blocks:
            for number in range(len(parts["resnets"])):
                x = taken(parts, number, x, time, text)
                kept.append(x)
            if "downsamplers" in parts:
                x = parts["downsamplers"][0](x)
                kept.append(x)
        x = self.mid_block(x, time, text)
        for parts in self.up_blocks:
            for number in range(len(parts["resnets"])):
                x = taken(parts, number, torch.cat([x, kept.pop()], dim=1), time, text)
            if "upsamplers" in parts:
                x = parts["upsamplers"][0](x)
        found = self.conv_out(F.silu(self.conv_norm_out(x)))
        return found if noise is None else F.mse_loss(found.float(), noise.float())

    def training_batch(self, batch_size: int, image_size: int = 1024) -> dict[str, Tensor]:
        """What a step takes: pictures of `image_size` pixels as latents."""
        latents = (batch_size, 4, image_size // PIXELS, image_size // PIXELS)
        return {
            "sample": torch.randn(latents),
            "timestep": torch.randint(1000, (batch_size,)),
            "encoder_hidden_states": torch.randn(batch_size, TOKENS, self.context_width),
            "text_embeds": torch.randn(batch_size, POOLED),
            "time_ids": torch.full((batch_size, SIZES), float(image_size)),
            "noise": torch.randn(latents),
        }


def build() -> nn.Module:
    """Returns the U-Net of SDXL."""
    return UNet((320, 640, 1280), (0, 2, 10), context_width=2048)


def small() -> nn.Module:
    """Returns one that is quick to try."""
    return UNet((32, 64), (0, 1), context_width=64, head=32)
