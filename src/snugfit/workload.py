"""The workload: what is learned and how, whatever memory it is held in.

Together with a `Recipe` it makes a training run. Field docstrings are the help texts of the command line. Imports no torch.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

from snugfit.errors import RecipeError
from snugfit.fields import SettingsBase, type_problems
from snugfit.techniques import OPTIMIZER_NAMES
from snugfit.techniques.spellings import suggestion

OPTIMIZERS = tuple(name for name, one in OPTIMIZER_NAMES.items() if not one.holds)
STORED_OPTIMIZERS = {name: one.holds for name, one in OPTIMIZER_NAMES.items() if one.holds}
"""Optimizers of a recipe that hold the state of another one in another way: name -> the other one."""
DEFAULT_BATCH_SIZE = 64
"""Samples of an update where nobody says how many."""
CUSTOM_OPTIMIZER = "custom"
"""The workload's optimizer is a function or an object of the caller's, known to Python only."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Workload(SettingsBase):
    """What is learned: optimizer, schedule and batch, and the traits of the model that decide what is exact.

    Raises:
        RecipeError: Listing every field that is wrong.
    """

    optimizer: str = "adamw"
    """Optimizer, with the meaning and defaults of torch.optim: adam, adamw, sgd, adafactor or muon (matrices by Muon, the
    rest by AdamW)."""

    lr: float | None = None
    """Learning rate; None: the default of torch.optim for this optimizer."""

    weight_decay: float | None = None
    """Weight decay; None: the default of torch.optim for this optimizer."""

    betas: tuple[float, ...] | None = None
    """Adam's two decay rates; None: torch.optim's default."""

    momentum: float = 0.0
    """Momentum of SGD."""

    no_decay: bool = False
    """No weight decay for biases and norms (parameters of fewer than two dimensions)."""

    lr_schedule: Literal["constant", "cosine", "linear"] = "constant"
    """Learning rate over the run, after the warm-up; cosine and linear end at 0 and need the number of steps."""

    warmup_steps: int = 0
    """Steps over which the learning rate rises linearly from near 0."""

    clip_norm: float | None = None
    """Largest global 2-norm of the gradients; larger ones are scaled down. None: no clipping."""

    ema_decay: float | None = None
    """What an exponential moving average of the weights keeps of itself at each update, such as 0.999. Evaluations, and
    what the run leaves, are by the averages. None: no averages."""

    batch_size: int | None = None
    """Samples of one update, whatever the microbatch, of all GPUs together. None where the caller brings its own batches."""

    gpus: int = 1
    """GPUs of each machine that share every batch, one process each."""

    nodes: int = 1
    """Machines with as many GPUs each."""

    epochs: int = 1
    """Passes over the training data."""

    max_steps: int | None = None
    """Updates after which training ends, whatever the epochs; None: no limit."""

    seed: int = 0
    """Seed of initial weights, data order and dropout."""

    weights: str | None = None
    """Pretrained weights: a name the model's library knows (DEFAULT is its best), or a safetensors file. None: random
    values, except that a directory given as `hf:DIR` loads the weights it holds."""

    freeze: tuple[str, ...] = ()
    """Parameters left as they are: name patterns such as `features.*`, separated by commas."""

    eval_every: int | None = None
    """Updates between evaluations on the validation data; None: once an epoch."""

    evaluate: bool = True
    """Whether a run evaluates on held-out data, between its steps and at its end."""

    save_every: int | None = None
    """Updates between checkpoints; None: once an epoch."""

    patience: int | None = None
    """Evaluations in a row without a better value after which a run ends (of keep_best's metric, else of the loss); None: it
    goes on to its last step."""

    keep_best: str | None = None
    """Metric of the validation data (loss, accuracy or perplexity) whose best weights are kept, and saved in the end; None:
    the last ones are saved."""

    coupled_samples: bool | None = None
    """Whether the loss of a sample depends on the others of its batch (contrastive losses, statistics of the batch), so that
    microbatches change the update. None: a check of a few samples finds out. False is taken at its word."""

    keep_gradients: bool = False
    """Gradients stay in `grad` after a step, as the update took them (unscaled, clipped), until the next one begins: for
    logging norms. Costs their memory between steps."""

    keep_outputs: bool = False
    """Steps are asked for outputs, too (`trainer.step(batch, outputs=True)`): counts them in estimates and plans, those of
    the step before included, which a loop holds until it has the next."""

    batch_norm: bool = False
    """Trait of the model: it normalises with statistics of the batch, so microbatches change the result."""

    dropout: bool = False
    """Trait of the model: it draws random masks, so microbatches draw other masks than the whole batch."""

    half_weights: bool = False
    """Trait of the model: some of its own trained weights have 16 bits, so gradients of microbatches add up in these."""

    SUBJECT = "training settings"

    @property
    def ranks(self) -> int:
        """Processes that share a batch, one for each GPU."""
        return self.gpus * self.nodes

    @property
    def share_size(self) -> int | None:
        """Samples of the largest share of a batch; None where the batch's size is not known."""
        return None if self.batch_size is None else -(-self.batch_size // self.ranks)

    @property
    def least_group(self) -> int | None:
        """How many GPUs of a machine must take the same samples so that each has one; None where that cannot be."""
        if self.batch_size is None:
            return 1
        sizes = range(1, self.gpus + 1)
        return next((n for n in sizes if self.gpus % n == 0 and self.ranks // n <= self.batch_size), None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "freeze", _patterns(self.freeze))
        typed = type_problems(self)
        if "gpus" in typed:
            typed["gpus"] += " (`snugfit plan` also takes auto, and `snugfit estimate` several: 1,2,4,8.)"
        problems = [*typed.values(), *_range_problems(self)]
        if problems:
            raise RecipeError(problems, subject="training settings")


def algorithm_and_storage(optimizer: str) -> tuple[str, str | None]:
    """Splits an optimizer name (adamw, adamw8bit) into the algorithm and how its state is held.

    Returns the workload's optimizer, and the recipe's (None where the state is held as it is).
    """
    algorithm = STORED_OPTIMIZERS.get(optimizer)
    return (optimizer, None) if algorithm is None else (algorithm, optimizer)


def _patterns(value: Any) -> Any:
    """Patterns with commas between them become a tuple; anything odd is left to the checks."""
    if isinstance(value, str):
        return tuple(part.strip() for part in value.split(",") if part.strip())
    return value


def _range_problems(workload: Workload) -> Iterator[str]:
    if workload.optimizer not in (*OPTIMIZERS, CUSTOM_OPTIMIZER):
        known = (*OPTIMIZERS, *STORED_OPTIMIZERS)
        yield f"optimizer is {workload.optimizer!r}, which is unknown; {suggestion('optimizer', workload.optimizer, known)}"
    for name in ("batch_size", "gpus", "nodes", "epochs", "max_steps", "eval_every", "save_every", "patience"):
        value = getattr(workload, name)
        if value is not None and value < 1:
            yield f"{name} is {value}; it must be at least 1."
    for name in ("lr", "weight_decay", "momentum", "warmup_steps", "seed"):
        value = getattr(workload, name)
        if value is not None and not 0 <= value < float("inf"):
            yield f"{name} is {value}; it must be a finite number of at least 0."
    for name in ("patience", "keep_best"):
        if getattr(workload, name) is not None and not workload.evaluate:
            yield f"{name} goes by evaluations, and evaluate is False; leave one of them out."
    if workload.seed >= 2**64:
        yield f"seed is {workload.seed}; torch takes seeds below 2**64."
    if workload.clip_norm is not None and not 0 < workload.clip_norm < float("inf"):
        yield f"clip_norm is {workload.clip_norm}; it must be more than 0."
    if workload.ema_decay is not None and not 0 < workload.ema_decay < 1:
        yield f"ema_decay is {workload.ema_decay}; it must be more than 0 and less than 1, such as 0.999."
    if workload.betas is not None and (
        len(workload.betas) != 2 or not all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in workload.betas)
    ):
        yield f"betas is {workload.betas}; give two numbers from 0 to below 1, such as 0.9,0.999."
    if not all(isinstance(pattern, str) for pattern in workload.freeze):
        yield f"freeze is {workload.freeze}; give name patterns such as features.*"
