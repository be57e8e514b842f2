"""Where a script makes its optimizers, and what it calls the models that they train: where lines could be put into it."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import sys
import sysconfig
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType, ModuleType
from typing import TYPE_CHECKING, Any

from snugfit.attributes import Change
from snugfit.installed import is_installed
from snugfit.recording.recording import Recording
from snugfit.simulator.trained_models import left_out, run_with, weights_of_module

if TYPE_CHECKING:
    import torch

_SETTINGS = ("fused", "foreach", "capturable", "differentiable", "amsgrad", "maximize")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where in a file a call was running."""

    file: str
    """The file."""
    line: int
    """Its line, from 1."""
    column: int | None = None
    """Bytes before it in that line; None where Python does not know."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SeenModel:
    """A model that is trained, and what a file calls it where its optimizer is made."""

    place: Place | None
    """The line before which something can be put on the model; None where no variable of the code around it holds it."""
    name: str
    """An expression for it there, such as `self.net`; `model` where there is none."""
    blocks: Mapping[str, str]
    """Repeated block, as the recording names it -> its name in this model."""
    batch_norm: bool
    """Whether it normalises with statistics of the batch."""
    own_checkpoints: bool
    """Whether it has the method by which models of transformers checkpoint themselves."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SeenOptimizer:
    """An optimizer that has stepped."""

    kind: str
    """Its class."""
    algorithm: str
    """Its name among those of snugfit; `custom` for any other."""
    place: Place | None
    """The call that makes it; None where a library does, or where it is of a class that is not torch's."""
    settings: tuple[str, ...]
    """Switches that are on."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ScriptSeen:
    """What a run of a script has shown."""

    models: tuple[SeenModel, ...] = ()
    """Models that are trained; those without a name are the last."""
    nameless: tuple[str, ...] = ()
    """Classes of those that have none."""
    optimizers: tuple[SeenOptimizer, ...] = ()
    """Optimizers."""
    own_precision: str = ""
    """What the script does about number formats itself; empty: nothing."""
    left_out: int = 0
    """Weights of models that want gradients and are in no optimizer."""
    libraries: tuple[str, ...] = ()
    """Modules of installed libraries that the run imported."""

    @property
    def blocks(self) -> tuple[str, ...]:
        """Repeated blocks that can be told apart in the script, as the recording names them."""
        return tuple(name for model in self.models for name in model.blocks)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ScriptRecording(Recording):
    """The recording of a script, and what was seen of it."""

    seen: ScriptSeen = ScriptSeen()
    """What was seen."""


class Observer:
    """Looks where a script makes its optimizers, and by what names the code around it knows its modules."""

    def __init__(self, owns: Callable[[str], bool] | None) -> None:
        """`owns`: whether code of a file is that of the script, whose own names come first; None: there is none."""
        self._owns = owns or (lambda _: False)
        self._made: weakref.WeakKeyDictionary[Any, tuple[Place | None, list[_Candidate], int]] = (
            weakref.WeakKeyDictionary()
        )
        self._models: dict[tuple[Place | None, str], SeenModel] = {}
        self._modules: dict[tuple[Place | None, str], tuple[weakref.ref[Any], int]] = {}
        """Where a model is, and its name there -> itself, and how many optimizers were made before the one there."""
        self._nameless: list[str] = []
        self._optimizers: list[SeenOptimizer] = []
        self._own_precision = ""
        self._trained, self._left_out = set[int](), 0
        self.made: weakref.WeakSet[Any] = weakref.WeakSet()
        """Optimizers that were made, as long as they live."""
        self.lines: set[tuple[str, int]] = set()
        """Files and lines that were running when an optimizer was made."""
        self.in_trials = False
        """Whether optuna called the code that made an optimizer."""
        self.how_many = 0
        """Optimizers of torch.optim that were made and can step."""
        self.put_on: Sequence[str] = ()
        """Statements that are run with the model that has no name, when its optimizer is made."""

    @property
    def seen(self) -> ScriptSeen:
        """What was seen by now."""
        return ScriptSeen(
            models=tuple(sorted(self._models.values(), key=lambda model: model.place is None)),
            nameless=tuple(self._nameless),
            optimizers=tuple(self._optimizers),
            own_precision=self._own_precision,
            left_out=self._left_out,
        )

    def changes(self) -> list[Change]:
        """Returns what notes where an optimizer is made, and that autocast is on."""
        from torch.amp.autocast_mode import autocast
        from torch.optim import Optimizer

        make, enter = Optimizer.__init__, autocast.__enter__

        def made(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            self.how_many += _can_step(optimizer)  # before torch puts its hooks around the method of its class
            make(optimizer, *args, **kwargs)
            self.made.add(optimizer)
            if self.put_on:
                run_with(self.put_on, optimizer)
            self._made[optimizer] = (*self._around(sys._getframe(1)), self.how_many)

        def entered(context: Any) -> Any:
            if context._enabled:
                self._own_precision = "it computes under autocast already"
            return enter(context)  # type: ignore[no-untyped-call]

        return [(Optimizer, "__init__", made), (autocast, "__enter__", entered)]

    def _around(self, frame: FrameType) -> tuple[Place | None, list[_Candidate]]:
        outside = [one for one in outwards(frame) if not is_below(one.f_code.co_filename)]
        frames = [one for one in outside if not _makes_optimizer(one)]
        self.in_trials |= any("optuna" in Path(one.f_code.co_filename).parts for one in outside)
        self.lines |= {(one.f_code.co_filename, one.f_lineno) for one in frames}
        candidates = [one for at, other in enumerate(frames) if is_own(other) for one in _candidates(other, at)]
        of_torch = outside[:1] == frames[:1]  # the class: arguments of torch's are not those of somebody's own
        return (_place(frames[0]) if frames and of_torch and is_own(frames[0]) else None), candidates

    def stepped(self, optimizer: Any, modules: Any) -> None:
        """Takes down where an optimizer was made and what its models are called; `modules`: the recorder's."""
        from snugfit.training.given_optimizer import name_of
        from snugfit.workloads.traits import HALF

        if optimizer not in self._made:
            return
        place, candidates, number = self._made.pop(optimizer)
        on = tuple(name for name in _SETTINGS if any(group.get(name) is True for group in optimizer.param_groups))
        self._optimizers.append(
            SeenOptimizer(kind=type(optimizer).__name__, algorithm=name_of(optimizer), place=place, settings=on)
        )
        trained = {id(weight): weight for group in optimizer.param_groups for weight in group["params"]}
        if any(weight.dtype in HALF for weight in trained.values()):
            self._own_precision = "its weights have 16 bits already"
        self._trained |= trained.keys()
        self._left_out = left_out(modules.models(), self._trained)
        for model in modules.models():
            if weights_of_module(model) & trained.keys():
                self._name(model, candidates, modules, number)

    def _name(self, model: torch.nn.Module, candidates: list[_Candidate], modules: Any, number: int) -> None:
        """Takes down the best name of a model: one that has all of it, of the script itself, innermost and short."""
        from snugfit.workloads.traits import model_traits

        weights = weights_of_module(model)
        found = [(one, held) for one in candidates if (held := one.module()) is not None]
        shared = [len(weights & weights_of_module(held)) for _, held in found]
        place, name, module = None, "model", model
        if any(shared):
            best = [pair for count, pair in zip(shared, found, strict=True) if count == max(shared)]
            one, module = min(best, key=lambda pair: self._strangeness(pair[0], pair[1], model))
            place, name = one.place, one.name
        else:
            self._nameless.append(type(model).__name__)
        key = (place, name)
        before = self._models.get(key)
        if before is not None and self._modules[key][0]() is not module:  # a function that several models come through
            self._models[key] = dataclasses.replace(before, blocks={})
            return
        for other, (known, at) in list(self._modules.items()):  # of several optimizers, that which is made first
            if known() is module and other != key and at <= number:
                return
            if known() is module and other != key:
                del self._modules[other], self._models[other]
        prefix, names = modules.name_of(model), {part: own for own, part in module.named_modules()}
        inside = {".".join(filter(None, (prefix, own))): part for own, part in model.named_modules()}
        blocks = {block: names[inside[block]] for block in modules.block_names if inside.get(block) in names}
        self._modules[key] = (weakref.ref(module), number)
        self._models[key] = SeenModel(
            place=place,
            name=name,
            blocks={**(before.blocks if before is not None else {}), **blocks},
            batch_norm=model_traits(module)["batch_norm"],
            own_checkpoints=callable(getattr(module, "gradient_checkpointing_enable", None)),
        )

    def _strangeness(self, one: _Candidate, module: Any, model: Any) -> tuple[Any, ...]:
        of_other = not self._owns(one.place.file)
        return of_other, one.depth, one.of_module, module is not model, one.name.count("."), len(one.name)


@dataclasses.dataclass(frozen=True, slots=True)
class _Candidate:
    """A variable that holds a module."""

    name: str
    place: Place
    depth: int
    """Frames between the optimizer and it."""
    of_module: bool
    """Whether it is a variable of the whole file, seen from a function."""
    module: weakref.ref[Any]


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yields a frame, who called it, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def _makes_optimizer(frame: FrameType) -> bool:
    """Whether code is a constructor of an optimizer's class, torch's or somebody's own."""
    from torch.optim import Optimizer

    code = frame.f_code
    return code.co_name == "__init__" and isinstance(frame.f_locals.get("".join(code.co_varnames[:1])), Optimizer)


def _can_step(optimizer: Any) -> bool:
    """Whether a class has a method `step` of its own: LOMO's, which updates in hooks of a backward pass, has none."""
    from torch.optim import Optimizer

    return inspect.unwrap(type(optimizer).step) is not inspect.unwrap(Optimizer.step)


def _place(frame: FrameType) -> Place:
    positions = getattr(frame.f_code, "co_positions", lambda: ())()  # Python 3.10 knows lines alone
    *_, column, _ = next(itertools.islice(positions, frame.f_lasti // 2, None), (None,) * 4)
    return Place(file=frame.f_code.co_filename, line=frame.f_lineno, column=column)


def _candidates(frame: FrameType, depth: int) -> Iterator[_Candidate]:
    import torch

    for name, value in list({**frame.f_globals, **frame.f_locals}.items()):
        if not name.isidentifier() or name.startswith("__") or isinstance(value, type | ModuleType):
            continue
        parts = value._modules if isinstance(value, torch.nn.Module) else getattr(value, "__dict__", {})
        attributes = ((f"{name}.{part}", inside) for part, inside in list(parts.items()) if str(part).isidentifier())
        for expression, module in ((name, value), *attributes):
            if isinstance(module, torch.nn.Module):
                yield _Candidate(expression, _place(frame), depth, name not in frame.f_locals, weakref.ref(module))


def is_below(file: str) -> bool:
    """Whether code is torch's or snugfit's."""
    import torch

    return file.startswith((str(Path(torch.__file__).parent), str(Path(__file__).parents[1])))


def is_own(frame: FrameType) -> bool:
    """Whether code is neither Python's nor an installed library's."""
    return is_own_file(frame.f_code.co_filename)


def is_own_file(file: str) -> bool:
    """The same of a file."""
    python = {sysconfig.get_path(name) for name in ("stdlib", "platstdlib")}
    return not is_installed(file) and not file.startswith(("<", *python))
