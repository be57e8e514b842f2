"""Generative models that are trained by one loss, and images made larger."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from benchmarks.stranger_cases.adopted import Adopted, adopts
from benchmarks.stranger_cases.scripts import definitions
from benchmarks.stranger_cases.vision import images


@adopts("pytorch/examples", kind="generative model")
def vae() -> Adopted:
    script = definitions("vae/main.py")
    return Adopted(
        model=script.VAE,
        batch=lambda: (torch.rand(128, 1, 28, 28), torch.randint(10, (128,))),
        loss=lambda output, batch: script.loss_function(output[0], batch[0], *output[1:]),
        loss_weight="sum",
        optimizer="adam",
    )


@adopts("pytorch/examples", kind="super-resolution")
def super_resolution() -> Adopted:
    from super_resolution.model import Net

    batch = lambda: (torch.rand(4, 1, 32, 32), torch.rand(4, 1, 64, 64))  # noqa: E731
    return Adopted(model=lambda: Net(2), batch=batch, loss=lambda output, batch: F.mse_loss(output, batch[1]))


@adopts("pytorch/examples", kind="similarity")
def siamese() -> Adopted:
    script = definitions("siamese_network/main.py")
    return Adopted(
        model=script.SiameseNetwork,
        batch=lambda: (torch.rand(8, 1, 28, 28), torch.rand(8, 1, 28, 28), torch.randint(2, (8,)).float()),
        forward=lambda model, batch: model(batch[0], batch[1]).squeeze(),
        loss=lambda output, batch: F.binary_cross_entropy(output, batch[2].to(output.dtype)),
        optimizer="sgd",
    )


@adopts("lucidrains/denoising-diffusion-pytorch", kind="diffusion")
def denoising_diffusion() -> Adopted:
    from denoising_diffusion_pytorch import GaussianDiffusion, Unet

    return Adopted(
        model=lambda: GaussianDiffusion(Unet(dim=16, dim_mults=(1, 2)), image_size=16, timesteps=100),
        batch=lambda: images(4, 16)[0],
    )


@adopts("openai/improved-diffusion", kind="diffusion")
def improved_diffusion() -> Adopted:
    from improved_diffusion.script_util import create_gaussian_diffusion
    from improved_diffusion.unet import UNetModel

    diffusion = create_gaussian_diffusion(steps=100)

    def loss(model, batch):
        return diffusion.training_losses(model, batch[0], batch[1])["loss"].mean()

    build = lambda: UNetModel(3, 32, 3, 1, (2,), channel_mult=(1, 2), num_heads=2, use_scale_shift_norm=True)  # noqa: E731
    return Adopted(model=build, batch=lambda: (images(4, 16)[0], torch.randint(100, (4,))), forward=loss)


@adopts("facebookresearch/DiT", kind="diffusion")
def dit() -> Adopted:
    from diffusion import create_diffusion
    from models import DiT

    diffusion = create_diffusion("")
    shape = {"input_size": 8, "hidden_size": 96, "depth": 4, "num_heads": 4, "num_classes": 10}

    def loss(model, batch):
        return diffusion.training_losses(model, batch[0], batch[2], {"y": batch[1]})["loss"].mean()

    batch = lambda: (torch.randn(8, 4, 8, 8), torch.randint(10, (8,)), torch.randint(1000, (8,)))  # noqa: E731
    return Adopted(model=lambda: DiT(**shape), batch=batch, forward=loss)


@adopts("lucidrains/vector-quantize-pytorch", kind="vector quantisation")
def vector_quantize() -> Adopted:
    from autoencoder import SimpleVQAutoEncoder

    def loss(model, batch):
        out, _, commitment = model(batch)
        return (out.clamp(-1, 1) - batch).abs().mean() + 10 * commitment.mean()

    build = lambda: SimpleVQAutoEncoder(codebook_size=64)  # noqa: E731
    return Adopted(model=build, batch=lambda: torch.rand(16, 1, 28, 28), forward=loss)


@adopts("rosinality/vq-vae-2-pytorch", kind="vector quantisation")
def vq_vae_2() -> Adopted:
    from vqvae import VQVAE

    def loss(model, batch):
        out, latent_loss = model(batch)
        return F.mse_loss(out, batch) + 0.25 * latent_loss.mean()

    build = lambda: VQVAE(channel=32, n_res_channel=16, embed_dim=16, n_embed=64)  # noqa: E731
    return Adopted(model=build, batch=lambda: images(4)[0], forward=loss, optimizer="adam")


@adopts("rosinality/glow-pytorch", kind="normalizing flow")
def glow() -> Adopted:
    from model import Glow

    def loss(model, batch):
        log_p, logdet, _ = model(batch)
        return -(log_p + logdet).mean() / (32 * 32 * 3)

    return Adopted(model=lambda: Glow(3, 4, 2), batch=lambda: images(4)[0], forward=loss, optimizer="adam", lr=1e-4)


@adopts("ikostrikov/pytorch-flows", kind="normalizing flow")
def masked_flow() -> Adopted:
    import flows

    block = lambda: (flows.MADE(8, 64), flows.BatchNormFlow(8), flows.Reverse(8))  # noqa: E731
    return Adopted(
        model=lambda: flows.FlowSequential(*block(), *block(), *block()),
        batch=lambda: torch.randn(100, 8),
        forward=lambda model, batch: -model.log_probs(batch).mean(),
        optimizer="adam",
        lr=1e-4,
    )


@adopts("yenchenlin/nerf-pytorch", kind="rendering")
def nerf() -> Adopted:
    from run_nerf import raw2outputs
    from run_nerf_helpers import NeRF, get_embedder

    def render(model, rays):
        z = torch.linspace(2.0, 6.0, 16).expand(len(rays), 16)
        points, views = rays[:, None, :3] + rays[:, None, 3:6] * z[..., None], rays[:, None, 3:6].expand(-1, 16, -1)
        raw = model(torch.cat([get_embedder(6)[0](points), get_embedder(2)[0](views)], -1))
        return raw2outputs(raw, z, rays[:, 3:6])[0]

    build, loss = lambda: NeRF(4, 64, 39, 15, use_viewdirs=True), lambda out, rays: F.mse_loss(out, rays[:, 6:])
    return Adopted(model=build, batch=lambda: torch.rand(64, 9), forward=render, loss=loss)


@adopts("leftthomas/SRGAN", kind="super-resolution")
def srgan_generator() -> Adopted:
    from loss import TVLoss
    from model import Generator

    smooth = TVLoss()
    return Adopted(
        model=lambda: Generator(2),
        batch=lambda: (torch.rand(2, 3, 24, 24), torch.rand(2, 3, 48, 48)),
        loss=lambda output, batch: F.mse_loss(output, batch[1]) + 2e-8 * smooth(output),
        optimizer="adam",
    )


@adopts("vsitzmann/siren", kind="implicit representation")
def siren() -> Adopted:
    from diff_operators import laplace
    from modules import SingleBVPNet

    def loss(model, coords):
        found = model({"coords": coords[None]})
        return laplace(found["model_out"], found["model_in"]).square().mean()

    build = lambda: SingleBVPNet(in_features=2, hidden_features=64, num_hidden_layers=2)  # noqa: E731
    return Adopted(model=build, batch=lambda: torch.rand(256, 2), forward=loss, lr=1e-4)
