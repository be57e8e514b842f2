"""What ranks do in `techniques/test_shard.py`, each in its own process, over gloo."""

import contextlib
import datetime
import types
import warnings

import torch
import torch.distributed as dist
import transformers
from rank_processes import SECONDS
from small_models import cross_entropy, make_batches, make_model
from torch.distributed.tensor import DTensor
from torchvision.models import VisionTransformer

import snugfit
from snugfit.ladder_presets import PRESETS
from snugfit.measure.allocator_events import AllocatorEvents, warm_up
from snugfit.private_torch.gloo import letting_go
from snugfit.runs.budget_watch import BudgetWatch
from snugfit.runs.processes import processes_here
from snugfit.techniques.batch_share import share_of
from snugfit.techniques.shard.ranks import check_ranks
from snugfit.workloads.models import build_model

STEPS = 2
warnings.filterwarnings("ignore", category=FutureWarning, module="torch.distributed")


@contextlib.contextmanager
def among_others(rank, world, meeting):
    """This rank in a process group over all ranks, which stays for what they do next."""
    if not dist.is_initialized():
        timeout = datetime.timedelta(seconds=SECONDS)
        dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=world, timeout=timeout)
    yield


def share(batch, rank, world):
    """This rank's samples of a batch."""
    start, end = share_of(len(batch[0]), world, rank)
    return tuple(tensor[start:end] for tensor in batch)


def whole(tensor):
    """A tensor as one process has it."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def build(name, dtype):
    """A model without what differs between a batch and its shares: dropout and statistics of the batch."""
    model = make_model(name, dtype)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout | torch.nn.MultiheadAttention):
            module.p = module.dropout = 0.0
    return model


def trained(name, fields, settings, batches, dtype, **more):
    """Losses and weights after a step for each batch."""
    warnings.simplefilter("ignore", snugfit.SnugfitWarning)
    trainer = snugfit.prepare(
        build(name, dtype), snugfit.Recipe(**fields), loss=cross_entropy, lr=0.01, device="cpu", **settings, **more
    )
    losses = [float(trainer.step(batch)) for batch in batches]
    trainer.finish()
    return losses, {key: whole(value).detach().clone() for key, value in trainer.model.named_parameters()}


def train(rank, world, meeting, name, fields, settings, samples, last, dtype):
    """Returns losses and weights of a training on this rank's shares; the last batch may be smaller."""
    with among_others(rank, world, meeting):
        batches = [*make_batches(name, samples, STEPS - 1, dtype), *make_batches(name, last, 1, dtype)]
        return trained(name, fields, settings, [share(batch, rank, world) for batch in batches], dtype)


def gradients_of(name, fields, batch):
    """The gradients of a step in fp32, whole, where their owner looks for them."""
    trainer = snugfit.prepare(
        build(name, torch.float32), snugfit.Recipe(**fields), loss=cross_entropy, optimizer="sgd", lr=0.01, device="cpu",
        keep_gradients=True, batch_size=8,
    )  # fmt: skip
    trainer.step(batch)
    trainer.finish()
    return {key: whole(weight.grad).clone() for key, weight in trainer.model.named_parameters()}


def gradients(rank, world, meeting, name, fields):
    """Returns the gradients of a step on this rank's share of a batch."""
    with among_others(rank, world, meeting):
        (batch,) = make_batches(name, 8, 1, torch.float32)
        return gradients_of(name, fields, share(batch, rank, world))


def first_fails(rank, world, meeting):
    """Returns what each rank hears where the first one cannot make what all wait for."""

    def make():
        raise snugfit.DoesNotFitError("nothing fits")

    with among_others(rank, world, meeting):
        try:
            return processes_here().from_first(make)
        except snugfit.DoesNotFitError as error:
            return f"{error}, exit code {error.exit_code}"


def message_about_cards(rank, world, meeting):
    """Returns what is said of processes that gloo has connected, on cards."""
    with among_others(rank, world, meeting):
        try:
            check_ranks(world, torch.device("cuda"))
        except snugfit.InputError as error:
            return str(error)
        return ""


def over_budget(rank, world, meeting, fails_in=None):
    """Returns what comes of a last rank that is over its budget until checkpointing is on, which may fail in one of them."""
    with among_others(rank, world, meeting):
        warnings.simplefilter("ignore", snugfit.SnugfitWarning)
        full = snugfit.Recipe(shard="full")
        fallbacks = (full.replace(checkpoint="all"), full.replace(microbatch_size=2))
        trainer = snugfit.prepare(
            build("mlp", torch.float64),
            full,
            fallbacks=fallbacks,
            loss=cross_entropy,
            lr=0.01,
            device="cpu",
            batch_size=8,
        )
        put_in_place = trainer.put_in_place

        def fails(recipe):
            if recipe.checkpoint != "none":
                raise MemoryError
            put_in_place(recipe)

        if rank == fails_in:
            trainer.put_in_place = fails
        meter = types.SimpleNamespace(
            after_step=lambda _: None,
            changing=contextlib.nullcontext,
            recent_peak_bytes=lambda: 100 * (rank + 1) if trainer.steps_done and trainer.recipe == full else 100,
        )
        watch = BudgetWatch(meter, trainer, {"budget_bytes": 150})
        for batch in make_batches("mlp", 8, 3, torch.float64):
            trainer.step(share(batch, rank, world))
            watch.after_step(trainer.steps_done)
        weights = {key: whole(value).detach().clone() for key, value in trainer.model.named_parameters()}
        return trainer.recipe.to_mapping(defaults=False), [one.over_bytes for one in watch.exceeded], weights


def message(rank, world, meeting, fields, settings, samples=8):
    """Returns the message of the error that a preparation or its first step gives."""
    with among_others(rank, world, meeting):
        try:
            trained("mlp", fields, settings, [share(make_batches("mlp", samples, 1)[0], rank, world)], torch.float64)
        except snugfit.SnugfitError as error:
            return str(error)
        return ""


def _wide():
    """16 blocks of 4 MiB, with a weight that two modules share, a buffer of random numbers, and one made of a weight."""
    blocks = [torch.nn.Sequential(torch.nn.Linear(1024, 1024), torch.nn.ReLU()) for _ in range(16)]
    model = torch.nn.Sequential(*blocks, torch.nn.Linear(1024, 4))
    model.register_buffer("noise", torch.randn(5))
    model.register_buffer("first", model[-1].weight.detach()[0, :3] * 2)
    return model


def _reads_values():
    """A model whose constructor looks at a weight."""
    model = torch.nn.Sequential(torch.nn.Linear(6, 6), torch.nn.Linear(6, 4))
    model.scale = float(model[0].weight.abs().max())
    return model


MODELS = {"wide": _wide, "reads values": _reads_values}


def built(rank, world, meeting, name, fields):
    """Returns the weights that training starts from, as one process has them, and the most that building held here."""
    warnings.simplefilter("ignore", snugfit.SnugfitWarning)
    events = AllocatorEvents()
    with among_others(rank, world, meeting):
        torch.manual_seed(3 + rank)  # only the first process's draws may count
        warm_up()
        events.start()
        with letting_go():
            trainer = snugfit.prepare(MODELS[name], snugfit.Recipe(**fields), loss=cross_entropy, device="cpu")
        events.stop()
        state = {**dict(trainer.model.named_parameters()), **dict(trainer.model.named_buffers())}
        return {key: whole(value).detach().clone() for key, value in state.items()}, events.peak_bytes


_SMALL_TEXT = {"n_layers": 2, "num_hidden_layers": 2, "n_heads": 2, "num_attention_heads": 2, "vocab_size": 300}
_SMALL_TEXT |= {"dim": 32, "hidden_size": 32, "hidden_dim": 64, "intermediate_size": 64, "block_size": 16}


def _stand_in(preset):
    """A small model with the structure of a preset's."""
    if preset.config is None:
        sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64, "num_classes": 10}
        return VisionTransformer(image_size=16, patch_size=8, **sizes)
    config = {name: _SMALL_TEXT.get(name, value) for name, value in preset.config.items()}
    config["max_position_embeddings"] = 256
    kind = getattr(transformers, config["architectures"][0])
    return kind(kind.config_class(**config))


def climbed(rank, world, meeting, name):
    """Returns, for each rung of a guide's ladder, its losses on this rank, and whether the weights moved; or its error."""
    warnings.simplefilter("ignore")
    preset, found = PRESETS[name], {}
    with among_others(rank, world, meeting):
        for rung in preset.ladder({}, random_data=True).rungs:
            torch.manual_seed(5)
            model = _stand_in(preset)
            if preset.config is None:
                batch = torch.randn(4, 3, 16, 16), torch.tensor([1, 7, 2, 3])
            else:
                batch = {"input_ids": torch.randint(3, 300, (4, 256)), "labels": torch.tensor([0, 1, 0, 1])}
            loss = cross_entropy if preset.config is None else None
            before = {key: weight.detach().clone().float() for key, weight in model.named_parameters()}
            try:
                trainer = snugfit.prepare(
                    model, rung.recipe, loss=loss, optimizer="adam", lr=0.01, device="cpu", batch_size=4 * world
                )
                losses = [float(trainer.step(batch)) for _ in range(2)]
                trainer.finish()
            except RuntimeError as error:
                found[rung.name] = str(error)
                continue
            moved = [not torch.equal(whole(one).detach().float(), before[key]) for key, one in model.named_parameters()]
            found[rung.name] = losses, any(moved)
    return found


def mapped(rank, world, meeting, weights, fields):
    """Returns the weights of a training whose processes get a file's, and the most that it held here."""
    warnings.simplefilter("ignore", snugfit.SnugfitWarning)
    events = AllocatorEvents()
    with among_others(rank, world, meeting):
        warm_up()
        events.start()
        model = build_model(f"{__file__}:_wide", weights=weights, init="meta", processes=world, number=rank)
        trainer = snugfit.prepare(model, snugfit.Recipe(init="meta", **fields), loss=cross_entropy, device="cpu")
        events.stop()
        found = {key: whole(value).detach().clone() for key, value in trainer.model.named_parameters()}
        return found, events.peak_bytes
