"""Records a run on fake tensors: every storage with its birth and death, every operator, in exact order.

The recorder is a dispatch mode below everything else, so it sees what reaches the kernels: after autograd, after autocast,
after composite operators were taken apart.

What an operator does to fake tensors is worked out once (`new_operators.py`), remembered (`dispatch_plan.py`) and followed.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

import torch

from snugfit import private_torch
from snugfit.attributes import replaced
from snugfit.fake_device import attention_kernels, multihead_kernels, own_kernels
from snugfit.fake_device.accelerator import backend, of_any_accelerator
from snugfit.fake_device.personality import DEVICE_TYPE, Personality
from snugfit.operators import cpu_operators
from snugfit.private_torch import DirectMode, collectives, dispatcher, fake_tensors
from snugfit.private_torch.backward_in_place import as_unwatched
from snugfit.private_torch.fake_tensors import FAKES
from snugfit.private_torch.library_classes import SEEN_AS, as_library, as_plain, of_library
from snugfit.private_torch.sparse_layouts import SparseFake
from snugfit.recorder import dispatch_plan, sparse_matrices
from snugfit.recorder.captured import Captured
from snugfit.recorder.claims import Claims
from snugfit.recorder.dispatch_plan import OperatorPlans
from snugfit.recorder.fake_calls import FakeCalls
from snugfit.recorder.module_path import ModulePath
from snugfit.recorder.moment import Moment
from snugfit.recorder.new_operators import NewOperators
from snugfit.recorder.notes import Notes
from snugfit.recorder.rank_operators import NOT_OF_RANKS, RankOperators
from snugfit.recorder.storage_ledger import StorageLedger
from snugfit.recording.generations import CardQuestions
from snugfit.recording.trace import Trace
from snugfit.recording.trace_builder import TraceBuilder
from snugfit.techniques.batches import tensors_in
from snugfit.techniques.held_values import held_values
from snugfit.values.assumptions import Assumptions
from snugfit.values.carried_values import KNOWING
from snugfit.values.known_values import follow, restart_draws
from snugfit.values.read_values import ReadValues

_aten = torch.ops.aten
_device = torch.ops.prim.device.default
_item = _aten._local_scalar_dense.default


def _by_index(tensor: torch.Tensor, mask: torch.Tensor) -> Any:
    """`torch.masked_select` as CUDA does it, in `masked_select_out_cuda_impl`."""
    given, mask = torch.broadcast_tensors(tensor, mask)  # type: ignore[no-untyped-call]
    return _aten.index.Tensor(given, [mask])


_OF_OTHERS: dict[Any, Callable[..., Any]] = {
    torch.ops.aten.scaled_dot_product_attention.default: attention_kernels.attention,
    _aten.masked_select.default: _by_index,
    torch.ops.aten._native_multi_head_attention.default: multihead_kernels.attention,
    torch.ops.aten._transformer_encoder_layer_fwd.default: multihead_kernels.encoder_layer,
}
"""Operators that a card makes of others, chosen as CUDA chooses them -> what runs them."""
_plans: dict[Any, dict[Any, OperatorPlans]] = {}


class Recorder(RankOperators, NewOperators, DirectMode):
    """Records what happens while it is entered; `build` then gives the trace."""

    answers: type[ReadValues] = ReadValues
    """Answers questions about values."""
    names: type[ModulePath] = ModulePath
    """Knows which module runs."""

    def __init__(
        self, personality: Personality, assumptions: Assumptions | None = None, builder: TraceBuilder | None = None
    ) -> None:
        """Has recorded nothing; events go to `builder` (None: a new one)."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.personality = personality
        self.step = 0
        """Number of the training step, for the marks of phases."""
        self.compiles = False
        """Whether code that asks for torch.compile is compiled; otherwise it runs eagerly."""
        self.answered: set[str] = set()
        """Questions about values that were answered although fake tensors have none; for the report."""
        self.locked: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        """Memory of the host whose pages are locked for a card."""
        self.card = CardQuestions(personality.capability)
        """Answers about the card; knows on which generations the recording is the same."""
        self.modules = self.names()
        self._plans: dict[Any, OperatorPlans] = {}
        self._cuda = personality.is_card
        self._builder = builder if builder is not None else TraceBuilder()
        self._ledger = StorageLedger(self._builder, DEVICE_TYPE if self._cuda else "cpu")
        self.values = self.answers(assumptions or Assumptions(), self._ledger, self.answered)
        """Answers to questions about values."""
        self._factory = fake_tensors.FakeFactory(fake_tensors.new_fake_mode())
        self._calls = FakeCalls(self._factory, self.values, self.card, cuda=self._cuda)
        self._claims = Claims(self._ledger, self.modules)
        self._moment = Moment(self.modules, self._claims, self._ledger, self._builder)
        self._notes = Notes(self._moment, self._ledger, self._builder, self.card, on_card=self._cuda)
        self._entered = ExitStack()
        self._captured = Captured(self._factory, personality.device, ())
        self._among_ranks = collectives.knows_groups()

    # -- the run from outside

    def ignore_compile_internals(self) -> bool:  # type: ignore[override]
        """Whether torch.compile compiles under this mode: yes, and its code is recorded like any other."""
        return self.compiles

    def __enter__(self) -> Recorder:
        """Starts to record."""
        restart_draws()
        told = [
            (backend, "observer", self._on_backend),
            (backend, "memory", self._notes.memory),
            (backend, "of_card", self.card.ask),
            (backend, "current", backend.current),
            (backend, "kept_before", 0),
            (torch.Tensor, "_make_subclass", staticmethod(of_library)),
            (torch.Tensor, "as_subclass", as_library),
        ]
        self._entered.enter_context(replaced(told))
        # Backward runs in this thread then: a dispatch mode sees no other.
        self._entered.enter_context(torch.autograd.set_multithreading_enabled(False))
        if self._cuda:
            self._entered.enter_context(replaced([*of_any_accelerator(), *self._notes.counted_hooks()]))
            self._plans = _plans.setdefault(self.personality, {})
        else:
            operators = self._calls.operators = cpu_operators.of_this_processor()
            self._plans = _plans.setdefault(operators, {})
        for watch in (self.modules, self._claims.optimizers(), private_torch.on_storage_resize(self._ledger.resized)):
            self._entered.enter_context(watch)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Stops to record."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._entered.close()

    @contextmanager
    def _also_inside(self) -> Iterator[None]:
        """Records the operators that an operator runs inside itself, without setting up what `__enter__` does."""
        super().__enter__()  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            super().__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def bring(self, captured: Iterable[torch.Tensor]) -> None:
        """Takes the tensors that the step's code holds besides model and batch; call it before the recording."""
        self._captured = Captured(self._factory, self.personality.device, captured)

    def watch(self, model: torch.nn.Module) -> None:
        """Takes the names of a model's modules, and its fake parameters and buffers as weights."""
        self.modules.watch(model)
        self._claims.watch(model)
        if not self._cuda:  # on a card only what is used goes there; in this memory it is as soon as the model is
            self._take_captured([one.value for one in held_values(model).values()], {}, "")

    def saw(self, tensor: torch.Tensor) -> None:
        """Records a tensor that no operator made.

        `tensor`: a real host tensor, such as a copy of the random state.
        """
        self._notes.storage(tensor, self._moment.module())

    def host_pool(self) -> AbstractContextManager[None]:
        """Returns a context in which new tensors count as host memory, even in a run on cpu."""
        return self._ledger.as_host()

    def on_phase(self, name: str, entered: bool) -> None:
        """Takes a mark of `snugfit.phases`."""
        self._moment.mark(name, entered, self.step)

    def _on_backend(self, what: str, stream: int, value: Any) -> Any:
        """Takes down what was asked of `torch.sim`; a pretend card does it."""
        return self._notes.on_backend(what, stream, value)

    @property
    def events(self) -> int:
        """How many events were recorded so far."""
        return len(self._builder)

    @property
    def ledger(self) -> StorageLedger:
        """The storages that are alive."""
        return self._ledger

    @property
    def processor(self) -> str | None:
        """Describes the processor that was asked what operators take; None for a card."""
        operators = self._calls.operators
        return None if operators is None else operators.processor.in_words()

    def build(self) -> Trace:
        """Returns the trace so far; everything alive gets its final category."""
        self._claims.weights()
        self._ledger.decide_all()
        return self._builder.build()

    # -- operators

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Runs one operator on fake tensors and records it."""
        if func is _device and type(args[0]) in FAKES:  # first, as it is asked more often than all else together
            return args[0].fake_device
        if SEEN_AS and not SEEN_AS.isdisjoint(types):
            with as_plain(tensors_in((*args, *(kwargs or {}).values()))):
                return self.__torch_dispatch__(func, (), args, kwargs)
        if self._among_ranks:
            found = self._of_ranks(func, types, args, kwargs or {})
            if found is not NOT_OF_RANKS:
                return found
        if func is _device:
            return args[0].device
        if SparseFake in types or func in sparse_matrices.MAKERS:
            with self._also_inside():
                return sparse_matrices.run(self._factory.mode, func, args, kwargs or {})
        if func is _item and type(args[0]) not in FAKES:
            return func(*args)
        func = as_unwatched(func, args)
        kwargs = kwargs or {}
        module = self._moment.module()
        if self._captured.unused:
            self._take_captured(args, kwargs, module)
        known = self._plans.get(func)
        if known is None:
            known = self._plans[func] = OperatorPlans(func, knows=func in KNOWING)
        found = known.key(args, kwargs)
        if found is not None:
            plan = known.plans.get(found[0])
            if plan is not None:
                result, fresh = dispatch_plan.follow(plan, found[1], self._factory)
                if fresh or plan.cost.kernels:
                    self._notes.operator(plan, fresh, module)
                    if known.knows:
                        self._know(func, args, found[1], fresh)
                follow(func, args, kwargs, found[1], result)
                return self._ran(func, args, kwargs, result)
        if func.namespace == "profiler":  # a name for a stretch of code, which reaches no device
            return func(*args, **kwargs)
        # There is no plan. Either the device has no kernel for this operator, and what its body does is recorded in its
        # place, or the operator is worked out as a whole.
        if self._cuda and func in _OF_OTHERS:
            with self._also_inside():
                return _OF_OTHERS[func](*args, **kwargs)
        how = own_kernels.choice(func, self.personality.kind)
        if how == own_kernels.APART:
            with self._also_inside():
                return func.decompose(*args, **kwargs)
        taken_apart = self._cuda and how == own_kernels.APART_WHERE_IT_HOLDS_MORE
        if taken_apart and own_kernels.holds_more(func, self.personality.kind, args, kwargs, found and found[0]):
            self._builder.taken_apart[str(func), module] = None
            with self._also_inside():
                return dispatcher.run_explicit_body(func, args, kwargs)
        body = dispatcher.python_body(func)
        if body is not None:
            with self._also_inside():
                return body(*args, **kwargs)
        with as_plain(tensors_in((*args, *kwargs.values()))):
            return self._work_out(func, args, kwargs, module, found)

    def _take_captured(self, args: Sequence[Any], kwargs: dict[str, Any], module: str) -> None:
        """Counts a captured tensor from its first use on."""
        used = self._captured.used(tensors_in((*args, *kwargs.values())))
        for tensor in used:
            self._notes.storage(tensor, module)
        self._ledger.claim(used, "weights")
