"""A Lightning fit that is about to train, as a job for the simulation: a Trainer of the same settings fits three steps."""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from snugfit.errors import CannotSimulateError, InputError
from snugfit.interop.recorded_training import Samples
from snugfit.phases import phase
from snugfit.simulator.watched_script import STEPS
from snugfit.simulator.widest_samples import widest_samples

if TYPE_CHECKING:
    import torch

_EVALUATION_BATCHES = 2


class Loader:
    """What a loader makes its batches of: samples that travel, how many make a batch, and how."""

    def __init__(self, loader: Any, batches: int, what: str) -> None:
        """Reads the widest samples of a loader, or its first batches where it does not say what they are made of."""
        import torch

        self.batches = batches
        self.size: int | None = getattr(loader, "batch_size", None)
        self.collate: Any = getattr(loader, "collate_fn", None)
        if isinstance(loader, torch.utils.data.DataLoader) and self.size:
            self.samples = widest_samples(loader.dataset, self.size * batches, what)
        else:
            self.size, self.collate = None, None
            self.samples = list(itertools.islice(iter(loader), batches))
        if not self.samples:
            raise InputError(f"{what} gives no batches, so there is nothing to look at.")

    def build(self, times: int) -> Any:
        """Returns a loader of the samples that goes through them so many times."""
        from torch.utils.data import DataLoader

        needed = self.batches * (self.size or 1) * times
        data: Any = Samples(self.samples, -(-needed // len(self.samples)))
        return DataLoader(data, batch_size=self.size, collate_fn=self.collate or _as_it_is)


def _as_it_is(batch: Any) -> Any:
    return batch


class LightningJob:
    """A LightningModule with its loaders, and the settings of the Trainer that fits it."""

    def __init__(self, trainer: Any, module: Any) -> None:
        """Takes the two as they are when training starts."""
        if trainer.world_size > 1:
            raise CannotSimulateError(
                f"the Trainer runs on {trainer.world_size} devices; only one process is simulated."
            )
        self.package = type(trainer).__module__.partition(".trainer.")[0]
        self.module = module
        self.accumulate = trainer.accumulate_grad_batches
        self.settings = {
            "precision": trainer.precision, "gradient_clip_val": trainer.gradient_clip_val,
            "gradient_clip_algorithm": trainer.gradient_clip_algorithm, "accumulate_grad_batches": self.accumulate,
        }  # fmt: skip
        self.train_loader = Loader(trainer.train_dataloader, self.accumulate, "the training loader")
        evaluated = trainer.val_dataloaders if trainer.enable_validation else None
        every = evaluated if isinstance(evaluated, list | tuple) else [] if evaluated is None else [evaluated]
        self.evaluated = [Loader(one, _EVALUATION_BATCHES, "the validation loader") for one in every]

    @property
    def samples(self) -> list[Any]:
        """All samples that travel."""
        return [sample for loader in (self.train_loader, *self.evaluated) for sample in loader.samples]

    def as_built(self) -> AbstractContextManager[None]:
        """Context in which its model is as it was; Lightning puts nothing around it."""
        return nullcontext()

    def owners(self) -> Iterator[torch.nn.Module]:
        """Yields the LightningModule."""
        yield self.module

    def optimizers(self) -> Iterator[torch.optim.Optimizer]:
        """Yields nothing: the module makes its optimizers."""
        yield from ()

    def train(self, device: torch.device) -> None:
        """Fits three steps, and validates."""
        library = importlib.import_module(self.package)
        trainer = library.Trainer(
            accelerator="cpu" if device.type == "cpu" else "gpu", devices=1, max_steps=STEPS, max_epochs=-1,
            limit_train_batches=STEPS * self.accumulate, limit_val_batches=_EVALUATION_BATCHES, num_sanity_val_steps=0,
            logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
            use_distributed_sampler=False, **self.settings,
        )  # fmt: skip
        loop = trainer.fit_loop.epoch_loop.val_loop
        validate = loop.run

        def run(*args: Any, **settings: Any) -> Any:
            with phase("evaluation"):
                return validate(*args, **settings)

        loop.run = run
        evaluated = [one.build(1) for one in self.evaluated] or None
        trainer.fit(self.module, self.train_loader.build(STEPS + 1), evaluated)
