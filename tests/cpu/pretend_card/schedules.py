"""One run on a pretend card, carried out again in other orders.

The host's part of a run is the same under every seed and costs most of the time. So it runs once, and what it asks of the
streams, what it does to its own tensors and what it reads are written down in order. `Asked.again` puts all memory back and
goes through that list with other streams: each answer that the host reads must be the one it got.
"""

from contextlib import contextmanager

import torch

from snugfit.pretend_card.present import card_present
from snugfit.pretend_card.streams import Streams
from snugfit.pretend_card.values import arguments
from snugfit.private_torch import dispatcher
from snugfit.techniques.batches import tensors_in

POISON = 0xFF


class Asked:
    """Stands in the place of a card's streams, and writes down what is asked of them."""

    def __init__(self, card):
        self._memory, self._streams = card.memory, card.streams
        self._list = []
        self._before = {}
        """Storages of the host as they were when the run first wrote to them."""
        self._made = set()
        """Storages of the host that an operator of the list makes."""
        self._find, self._on_host, self._copy, self._wait = card.find, card._on_host, card._copy_to_host, card.wait
        card.streams = self
        card.find, card._on_host, card._copy_to_host = self._found, self._ran_on_host, self._copied_to_host
        card.read = self._read

    @property
    def used(self):
        """Numbers of the streams that had work."""
        return {given[0] for what, *given in self._list if what == "put"}

    # -- what is asked of streams

    def put(self, stream, work):
        self._list.append(("put", stream, work))
        self._streams.put(stream, work)

    def mark(self, stream):
        mark = self._streams.mark(stream)
        self._list.append(("mark", stream, mark))
        return mark

    def wait(self, stream, mark):
        self._list.append(("wait", stream, mark))
        self._streams.wait(stream, mark)

    def finish(self, mark):
        self._list.append(("finish", mark))
        self._streams.finish(mark)

    def finish_all(self):
        self._list.append(("finish_all",))
        self._streams.finish_all()

    def reached(self, mark):
        return self._streams.reached(mark)

    # -- what the host does

    def _found(self, tensor):
        """A copy of pageable memory is one that the host makes."""
        values = self._find(tensor)
        if values is not tensor and values.untyped_storage()._cdata != self._memory._bytes.untyped_storage()._cdata:
            self._note(torch.ops.aten.clone.default, (tensor,), {}, values)
        return values

    def _read(self, tensor):
        values = self._found(tensor)
        self._wait()
        self._list.append(("read", values, values.clone()))
        return values

    def _copied_to_host(self, host, source, non_blocking=False):
        storage = host.untyped_storage()
        if storage._cdata not in self._made | self._before.keys():
            before = storage.clone()
            if host.nbytes == storage.nbytes():
                before.fill_(POISON)
            self._before[storage._cdata] = storage, before
        return self._copy(host, source, non_blocking)

    def _ran_on_host(self, func, args, kwargs):
        for tensor in _written(func, args, kwargs):
            storage = tensor.untyped_storage()
            if storage._cdata not in self._made | self._before.keys():
                self._before[storage._cdata] = storage, storage.clone()
        result = self._on_host(func, args, kwargs)
        self._note(func, args, {name: one for name, one in kwargs.items() if name != "pin_memory"}, result)
        return result

    def _note(self, func, args, kwargs, result):
        # A parameter of the host becomes one of the card when its module moves, so its memory is kept and not itself.
        args, result = arguments(args, torch.Tensor.detach), arguments(result, torch.Tensor.detach)
        kwargs = {name: arguments(one, torch.Tensor.detach) for name, one in kwargs.items()}
        given = {tensor.untyped_storage()._cdata for tensor in tensors_in((*args, *kwargs.values()))}
        results = result if isinstance(result, list | tuple) else [result]
        new = [isinstance(one, torch.Tensor) and one.untyped_storage()._cdata not in given for one in results]
        written = bool(_written(func, args, kwargs))
        if not written and not any(new):
            return
        self._made |= {one.untyped_storage()._cdata for one, is_new in zip(results, new, strict=True) if is_new}
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._list.append(("drawn", results, [one.clone() for one in results]))
        else:
            made = [one if is_new else None for one, is_new in zip(results, new, strict=True)]
            self._list.append(("host", func, args, kwargs, made))

    # -- and once more

    @torch.no_grad()
    def again(self, streams):
        """Carries all of it out again, after the run. What the run has returned on the host is written anew.

        Raises:
            AssertionError: The host would have read something else.
        """
        self._memory._bytes[: self._memory.allocator._next_address].fill_(POISON)
        for storage, before in self._before.values():
            storage.copy_(before)
        marks = {}
        for what, *given in self._list:
            if what == "put":
                streams.put(*given)
            elif what == "mark":
                stream, mark = given
                marks[id(mark)] = streams.mark(stream)
            elif what == "wait":
                stream, mark = given
                streams.wait(stream, marks[id(mark)])
            elif what == "finish":
                streams.finish(marks[id(given[0])])
            elif what == "finish_all":
                streams.finish_all()
            elif what == "read":
                values, got = given
                assert values.equal(got), "the host read something else"
            elif what == "drawn":
                for one, value in zip(*given, strict=True):
                    one.copy_(value)
            else:
                _on_host_again(*given)


def _on_host_again(func, args, kwargs, new):
    if func._opname.startswith("empty"):
        new[0].untyped_storage().fill_(POISON)
        return
    made = func(*args, **kwargs)
    for one, value in zip(new, made if isinstance(made, list | tuple) else [made], strict=True):
        if one is not None:
            one.copy_(value)


def _written(func, args, kwargs):
    places = dispatcher.places_written(func)
    return tensors_in([args[at] if at < len(args) else kwargs.get(name) for at, name in places])


@contextmanager
def asked_of_a_card(seed=0, *, eager=False):
    """A card without an end, whose run can be carried out again; yields the card and what was asked."""
    with card_present(None, seed=seed, eager=eager) as card:
        yield card, Asked(card)


class _Never:
    """Draws nothing that would let a stream go on early."""

    def random(self):
        return 1.0

    def sample(self, population, count):
        return list(population)[:count]


def orders(used, seeds):
    """Streams in which a run is carried out again.

    One queue has one order: then it is carried out as early as can be, and as late. Several are drawn by seeds.
    """
    if len(used) > 1:
        return [Streams(seed) for seed in range(seeds)]
    late = Streams()
    late._random = _Never()
    return [Streams(eager=True), late]
