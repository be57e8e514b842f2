"""Loops that keep their own backward and updates: games, rewards, learning to learn, line searches."""

from __future__ import annotations

from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.stranger_cases.adopted import Adopted, adopts
from benchmarks.stranger_cases.scripts import definitions


def two_adams(first, second, lr=2e-4):
    """Makes the optimizers of the two networks of a game."""
    return lambda model: [
        torch.optim.Adam(model[name].parameters(), lr=lr, betas=(0.5, 0.999)) for name in (first, second)
    ]


@adopts("pytorch/examples", kind="game of two networks")
def dcgan() -> Adopted:
    script = definitions("dcgan/main.py")
    vars(script).update(nz=16, ngf=8, ndf=8, nc=3)

    def step(nets, optimizers, real):
        nets["D"].zero_grad()
        fake = nets["G"](torch.randn(len(real), 16, 1, 1))
        errors = F.binary_cross_entropy(nets["D"](real), torch.ones(len(real)))
        (errors + F.binary_cross_entropy(nets["D"](fake.detach()), torch.zeros(len(real)))).backward()
        optimizers[0].step()
        nets["G"].zero_grad()
        loss = F.binary_cross_entropy(nets["D"](fake), torch.ones(len(real)))
        loss.backward()
        optimizers[1].step()
        return loss.detach()

    build = lambda: nn.ModuleDict({"D": script.Discriminator(0), "G": script.Generator(0)})  # noqa: E731
    return Adopted(model=build, batch=lambda: torch.rand(4, 3, 64, 64), step=step, optimizer=two_adams("D", "G"))


@adopts("eriklindernoren/PyTorch-GAN", kind="game of two networks")
def wgan_gp() -> Adopted:
    script = definitions("implementations/wgan_gp/wgan_gp.py")
    script.opt, script.img_shape = SimpleNamespace(latent_dim=100), (1, 28, 28)
    script.Tensor = torch.FloatTensor

    def step(nets, optimizers, real):
        optimizers[0].zero_grad()
        z = torch.randn(len(real), 100)
        fake = nets["G"](z)
        penalty = script.compute_gradient_penalty(nets["D"], real.data, fake.data)
        (nets["D"](fake).mean() - nets["D"](real).mean() + 10 * penalty).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        loss = -nets["D"](nets["G"](z)).mean()
        loss.backward()
        optimizers[1].step()
        return loss.detach()

    build = lambda: nn.ModuleDict({"D": script.Discriminator(), "G": script.Generator()})  # noqa: E731
    return Adopted(model=build, batch=lambda: torch.rand(16, 1, 28, 28), step=step, optimizer=two_adams("D", "G"))


@adopts("vwxyzjn/cleanrl", kind="rewards")
def ppo() -> Adopted:
    script = definitions("cleanrl/ppo.py")
    envs = SimpleNamespace(
        single_observation_space=SimpleNamespace(shape=(4,)), single_action_space=SimpleNamespace(n=2)
    )

    def step(agent, optimizer, batch):
        _, log_probability, entropy, value = agent.get_action_and_value(batch[0], batch[1])
        ratio = (log_probability - batch[2]).exp()
        policy = torch.max(-batch[3] * ratio, -batch[3] * ratio.clamp(0.8, 1.2)).mean()
        loss = policy - 0.01 * entropy.mean() + 0.5 * 0.5 * ((value.view(-1) - batch[4]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(agent.parameters(), 0.5)
        optimizer.step()
        return loss.detach()

    batch = lambda: (torch.randn(128, 4), torch.randint(2, (128,)), *torch.randn(3, 128))  # noqa: E731
    adam = lambda agent: torch.optim.Adam(agent.parameters(), lr=2.5e-4, eps=1e-5)  # noqa: E731
    return Adopted(model=lambda: script.Agent(envs), batch=batch, step=step, optimizer=adam)


@adopts("pranz24/pytorch-soft-actor-critic", kind="rewards")
def soft_actor_critic() -> Adopted:
    from model import GaussianPolicy, QNetwork

    def step(nets, optimizers, batch):
        state, action, reward, following = batch
        with torch.no_grad():
            chosen, chance, _ = nets["policy"].sample(following)
            target = reward + 0.99 * (torch.min(*nets["target"](following, chosen)) - 0.2 * chance)
        critic = sum(F.mse_loss(q, target) for q in nets["critic"](state, action))
        optimizers[0].zero_grad()
        critic.backward()
        optimizers[0].step()
        chosen, chance, _ = nets["policy"].sample(state)
        loss = (0.2 * chance - torch.min(*nets["critic"](state, chosen))).mean()
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        return loss.detach()

    nets = lambda: {"critic": QNetwork(8, 2, 64), "target": QNetwork(8, 2, 64), "policy": GaussianPolicy(8, 2, 64)}  # noqa: E731
    batch = lambda: (torch.randn(64, 8), torch.rand(64, 2), torch.rand(64, 1), torch.randn(64, 8))  # noqa: E731
    return Adopted(model=lambda: nn.ModuleDict(nets()), batch=batch, step=step, optimizer=two_adams("critic", "policy"))


@adopts("dragen1860/MAML-Pytorch", kind="learning to learn")
def maml() -> Adopted:
    from meta import Meta

    rates = {"update_lr": 0.1, "meta_lr": 1e-3, "n_way": 5, "k_spt": 1, "k_qry": 3, "task_num": 2, "update_step": 2}
    last = [("bn", [16]), ("flatten", []), ("linear", [5, 16 * 13 * 13])]
    layers = [("conv2d", [16, 1, 3, 3, 2, 0]), ("relu", [True]), *last]
    args = SimpleNamespace(**rates, update_step_test=2, imgc=1, imgsz=28)
    half = lambda n: (torch.rand(2, n, 1, 28, 28), torch.randint(5, (2, n)))  # noqa: E731
    # The model holds its optimizer, takes its steps in forward, and counts the answers that are right.
    step = lambda model, _, batch: torch.tensor(float(model(*batch)[-1]))  # noqa: E731
    given = {"step": step, "optimizer": lambda model: None, "assume": {"integer": 5}}
    return Adopted(model=lambda: Meta(args, layers), batch=lambda: (*half(5), *half(15)), **given)


@adopts("pytorch/examples", kind="line search")
def time_sequence() -> Adopted:
    script = definitions("time_sequence_prediction/train.py")

    def step(model, optimizer, batch):
        def closure():
            optimizer.zero_grad()
            loss = F.mse_loss(model(batch[0]), batch[1])
            loss.backward()
            return loss

        return optimizer.step(closure)

    lbfgs = lambda model: torch.optim.LBFGS(model.parameters(), lr=0.8, max_iter=4, history_size=4)  # noqa: E731
    batch = lambda: (torch.randn(8, 20).double(), torch.randn(8, 20).double())  # noqa: E731
    return Adopted(model=lambda: script.Sequence().double(), batch=batch, step=step, optimizer=lbfgs)
