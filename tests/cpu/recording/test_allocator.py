"""The allocator model: literal tables, invariants, and a slow obvious reference that has to agree on random work."""

import dataclasses
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from snugfit.errors import InputError
from snugfit.recording.allocator import AllocatorConfig, CachingAllocator, OutOfMemory

MIB = 2**20

# Reference ---------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class Piece:
    address: int
    size: int
    state: str  # live, free, unmapped


@dataclasses.dataclass
class Region:
    stream: int
    small: bool
    pieces: list

    def merge(self):
        i = 0
        while i + 1 < len(self.pieces):
            a, b = self.pieces[i], self.pieces[i + 1]
            if a.state == b.state != "live":
                a.size += b.size
                del self.pieces[i + 1]
            else:
                i += 1


class Reference:
    """Everything by search over plain lists."""

    def __init__(self, config, capacity):
        self.config, self.capacity = config, capacity if capacity is not None else 1 << 60
        self.regions, self.next, self.retries = [], 2 * MIB, 0

    def pieces(self, state):
        return [(p, r) for r in self.regions for p in r.pieces if p.state == state]

    @property
    def reserved(self):
        return sum(p.size for r in self.regions for p in r.pieces if p.state != "unmapped")

    @property
    def allocated(self):
        return sum(p.size for p, _ in self.pieces("live"))

    def round(self, n):
        return -(-n // 512) * 512

    def malloc(self, n, stream):
        size = self.round(n)
        small = size <= MIB
        for attempt in ("search", "ask", "release_all"):
            if attempt == "search":
                found = self.search(size, small, stream)
            else:
                if attempt == "release_all":
                    self.retries += 1
                    self.release_all()
                found = self.ask(size, small, stream)
            if found:
                return self.take(*found, size)
        raise OutOfMemory

    def search(self, size, small, stream):
        fit = [(p, r) for p, r in self.pieces("free") if r.stream == stream and r.small == small and p.size >= size]
        if not fit:
            return None
        fit.sort(key=lambda pr: (pr[0].size, pr[0].address))
        if self.config.expandable_segments:

            def grown(piece, region):
                i = region.pieces.index(piece) + 1
                more = i < len(region.pieces) and region.pieces[i].state == "unmapped"
                return piece.size + (region.pieces[i].size if more else 0)

            while len(fit) > 1 and grown(*fit[1]) < grown(*fit[0]):
                fit.pop(0)
        return fit[0]

    def segment_size(self, size, small):
        return 2 * MIB if small else 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB

    def ask(self, size, small, stream):
        if self.config.expandable_segments:
            return self.expand(size, small, stream)
        wanted = self.segment_size(size, small)
        if self.reserved + wanted > self.capacity:
            return None
        region = Region(stream, small, [Piece(self.next, wanted, "free")])
        self.next += wanted + 2 * MIB
        self.regions.append(region)
        return region.pieces[0], region

    def expand(self, size, small, stream):
        granule = 2 * MIB if small else 20 * MIB
        chosen = None
        for region in self.regions:
            if (region.stream, region.small) != (stream, small) or chosen:
                continue
            for i, piece in enumerate(region.pieces):
                if piece.state != "unmapped":
                    continue
                first = i - 1 if i and region.pieces[i - 1].state == "free" else i
                room, j = 0, first
                while j < len(region.pieces) and region.pieces[j].state != "live":
                    room += region.pieces[j].size
                    j += 1
                if room >= size:
                    chosen = region, region.pieces[first].address
                    break
        if not chosen:
            reach = 1 << 44 if self.capacity == 1 << 60 else self.capacity * 9 // 8
            reach = -(-reach // granule) * granule
            region = Region(stream, small, [Piece(self.next, reach, "unmapped")])
            self.next += reach + 2 * MIB
            self.regions.append(region)
            chosen = region, region.pieces[0].address
        region, address = chosen
        while True:
            i = next(i for i, p in enumerate(region.pieces) if p.address == address)
            piece = region.pieces[i]
            have = piece.size if piece.state == "free" else 0
            if have >= size:
                return piece, region
            if piece.state == "free":
                i += 1
                piece = region.pieces[i]
            mapped = min(-(-(size - have) // granule) * granule, piece.size)
            if self.reserved + mapped > self.capacity:
                return None
            rest = Piece(piece.address + mapped, piece.size - mapped, "unmapped")
            piece.size, piece.state = mapped, "free"
            if rest.size:
                region.pieces.insert(i + 1, rest)
            region.merge()

    def take(self, piece, region, size):
        rest = piece.size - size
        finely = region.small or self.config.expandable_segments
        if rest >= 512 if finely else rest > MIB:
            region.pieces.insert(region.pieces.index(piece) + 1, Piece(piece.address + size, rest, "free"))
            piece.size = size
        piece.state = "live"
        return piece.address

    def free(self, address):
        for region in self.regions:
            for piece in region.pieces:
                if piece.address == address and piece.state == "live":
                    piece.state = "free"
                    region.merge()
                    return
        raise AssertionError(address)

    def release_all(self):
        kept = []
        for region in self.regions:
            granule = 2 * MIB if region.small else 20 * MIB
            if self.config.expandable_segments:
                if [p.state for p in region.pieces] == ["unmapped"]:
                    kept.append(region)  # nothing was ever mapped, so nothing is unmapped now
                    continue
                base, pieces = region.pieces[0].address, []
                for p in region.pieces:
                    first = base + -(-(p.address - base) // granule) * granule
                    last = base + (p.address + p.size - base) // granule * granule
                    if p.state == "free" and first < last:
                        cuts = [
                            (p.address, first, "free"),
                            (first, last, "unmapped"),
                            (last, p.address + p.size, "free"),
                        ]
                        pieces += [Piece(a, b - a, s) for a, b, s in cuts if b > a]
                    else:
                        pieces.append(p)
                region.pieces = pieces
                region.merge()
                if [p.state for p in region.pieces] != ["unmapped"]:
                    kept.append(region)
            elif [p.state for p in region.pieces] != ["free"]:
                kept.append(region)
        self.regions = kept


SIZES = st.one_of(
    st.sampled_from([1, 511, 512, 513, MIB - 1, MIB, MIB + 1, 2 * MIB, 10 * MIB - 1, 10 * MIB, 10 * MIB + 1, 19 * MIB]),
    st.integers(1, 2 * MIB),
    st.integers(1, 60 * MIB),
)
OPS = st.lists(
    st.one_of(
        st.tuples(st.just("malloc"), SIZES, st.integers(0, 1)),
        st.tuples(st.just("free"), st.integers(0, 1 << 20), st.just(0)),
        st.tuples(st.just("empty"), st.just(0), st.just(0)),
    ),
    max_size=60,
)
CONFIGS = st.sampled_from([AllocatorConfig(), AllocatorConfig(expandable_segments=True)])


@settings(max_examples=300, deadline=None)
@given(OPS, CONFIGS, st.one_of(st.none(), st.integers(1, 200).map(lambda mb: mb * MIB)))
def test_agrees_with_the_reference_and_keeps_its_promises(ops, config, capacity):
    model, slow = CachingAllocator(config, capacity), Reference(config, capacity)
    live, peak_allocated, peak_reserved = {}, 0, 0
    for op, amount, stream in ops:
        if op == "malloc":
            retries, reserved = model.retries, model.reserved_bytes
            try:
                block = model.malloc(amount, stream)
            except OutOfMemory:
                with pytest.raises(OutOfMemory):
                    slow.malloc(amount, stream)
                wanted = slow.segment_size(slow.round(amount), amount <= MIB)
                assert model.reserved_bytes + wanted > capacity or config.expandable_segments
                continue
            assert slow.malloc(amount, stream) == block
            assert block not in live
            live[block] = amount
            if model.retries > retries:
                assert reserved + slow.segment_size(slow.round(amount), amount <= MIB) > capacity or (
                    config.expandable_segments
                )
        elif op == "free" and live:
            block = sorted(live)[amount % len(live)]
            del live[block]
            model.free(block)
            slow.free(block)
        elif op == "empty":
            model.empty_cache()
            slow.release_all()
        peak_allocated = max(peak_allocated, model.allocated_bytes)
        peak_reserved = max(peak_reserved, model.reserved_bytes)

        assert (model.allocated_bytes, model.reserved_bytes, model.retries) == (
            slow.allocated,
            slow.reserved,
            slow.retries,
        )
        assert model.requested_bytes == sum(live.values()) <= model.allocated_bytes <= model.reserved_bytes
        assert capacity is None or model.reserved_bytes <= capacity
        spans = sorted((b, b + model.block_bytes(b)) for b in live)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans)), "live blocks overlap"
        segments = model.segments()
        assert sum(s.size_bytes for s in segments) == model.reserved_bytes
        assert sum(b.size_bytes for s in segments for b in model.blocks(s) if b.live) == model.allocated_bytes
        assert all(a.address + a.size_bytes <= b.address for a, b in itertools.pairwise(segments))
    assert model.peak_allocated_bytes == peak_allocated
    assert model.peak_reserved_bytes >= peak_reserved


@settings(max_examples=100, deadline=None)
@given(st.lists(SIZES, min_size=1, max_size=40), CONFIGS)
def test_everything_freed_leaves_nothing_behind(sizes, config):
    model = CachingAllocator(config)
    for block in [model.malloc(size, 0) for size in sizes]:
        model.free(block)
    assert (model.allocated_bytes, model.requested_bytes) == (0, 0)
    model.empty_cache()
    assert model.reserved_bytes == 0 and model.segments() == []


# Literal tables: what was asked for -> live bytes, bytes of the card ------------------------------------------------


@pytest.mark.parametrize(
    "asked, allocated, reserved",
    [
        ([1], 512, 2 * MIB),  # rounded to 512, from a small segment
        ([513], 1024, 2 * MIB),
        ([MIB], MIB, 2 * MIB),  # still small
        ([MIB, MIB], 2 * MIB, 2 * MIB),  # two fill a small segment
        ([MIB, MIB, 1], 2 * MIB + 512, 4 * MIB),  # the third opens another
        ([MIB + 1], MIB + 512, 20 * MIB),  # large from here on: a shared segment
        ([10 * MIB - 512], 10 * MIB - 512, 20 * MIB),
        ([10 * MIB], 10 * MIB, 10 * MIB),  # its own segment from here on
        ([10 * MIB + 1], 10 * MIB + 512, 12 * MIB),  # in steps of 2 MiB; a rest over 1 MiB is split off
        ([31 * MIB], 32 * MIB, 32 * MIB),  # a rest of 1 MiB is not
        ([31 * MIB - 512], 31 * MIB - 512, 32 * MIB),  # one of 512 bytes more is
        ([19 * MIB, 2 * MIB], 20 * MIB + 2 * MIB, 20 * MIB + 20 * MIB),
        ([2 * MIB] * 10, 20 * MIB, 20 * MIB),  # ten share one segment
    ],
)
def test_size_classes(asked, allocated, reserved):
    model = CachingAllocator()
    for size in asked:
        model.malloc(size)
    assert (model.allocated_bytes, model.reserved_bytes) == (allocated, reserved)


def play(script, config=None, capacity=None):
    """`a=3` allocates 3 MiB as a, `s=3@1` on stream 1, `a-` frees it, `!` empties the cache; returns the allocator."""
    model, held = CachingAllocator(config, capacity), {}
    for word in script.split():
        if word == "!":
            model.empty_cache()
        elif word.endswith("-"):
            model.free(held.pop(word[:-1]))
        else:
            name, _, size = word.partition("=")
            size, _, stream = size.partition("@")
            held[name] = model.malloc(int(float(size) * MIB), int(stream or 0))
    return model


TABLES = [
    # script                          live  reserved
    ("a=3", 3, 20),
    ("a=3 a-", 0, 20),  # cached
    ("a=3 a- !", 0, 0),
    ("a=3 b=4 a- !", 4, 20),  # a segment with a live block stays
    ("a=12 a- b=12", 12, 12),  # reused
    ("a=12 a- b=13", 14, 26),  # too small to reuse
    ("a=64 a- b=12", 12, 64),  # split
    ("a=64 a- b=12 c=52", 64, 64),  # and the rest taken
    ("a=64 a- b=63", 64, 64),  # a rest of 1 MiB goes with the block
    ("a=64 a- b=12 c=12 b- c- d=64", 64, 64),  # neighbours merge
    ("a=30 b=20 a- b- c=15", 15, 50),  # best fit: from the 20, not from the 30
    ("a=20 b=20 a- b- c=30", 30, 70),  # segments do not merge
    ("a=12 a- b=12@1", 12, 24),  # streams do not share
    ("a=0.5 b=0.5 c=0.5 d=0.5 e=0.5", 2.5, 4),
    ("a=0.5 a- b=3", 3, 22),  # small and large pools do not share
]


@pytest.mark.parametrize("script, live, reserved", TABLES)
def test_lifetimes(script, live, reserved):
    model = play(script)
    assert (model.allocated_bytes / MIB, model.reserved_bytes / MIB) == (live, reserved)


@pytest.mark.parametrize(
    "script, capacity, reserved, retries",
    [
        ("a=30 a- b=40", 70, 70, 0),  # room for both: nothing is given back
        ("a=30 a- b=40", 69, 40, 1),  # full: the cached segment goes
        ("a=30 b=20 a- b- c=64", 64, 64, 1),
        ("s=0.5 s- a=62", 62, 62, 1),  # small segments as well
        ("a=30@1 a- b=40", 64, 40, 1),  # those of other streams as well
    ],
)
def test_a_full_card_gives_cached_segments_back_and_tries_again(script, capacity, reserved, retries):
    model = play(script, capacity=capacity * MIB)
    assert (model.reserved_bytes / MIB, model.retries) == (reserved, retries)


def test_a_split_segment_cannot_be_given_back():
    with pytest.raises(OutOfMemory, match=f"needs {64 * MIB} more bytes at {64 * MIB} reserved"):
        play("a=64 a- b=12 c=64", capacity=100 * MIB)


@pytest.mark.parametrize("expandable", [False, True])
def test_more_than_any_card_has_is_refused(expandable):
    with pytest.raises(InputError, match=r"one tensor would take 16\.0 TiB, which no card has"):
        CachingAllocator(AllocatorConfig(expandable_segments=expandable)).malloc(2**44)


def test_expandable_segments_leave_no_slivers():
    growing = "a=30 a- b=40 b- c=50 c- d=60"
    assert play(growing).reserved_bytes == 180 * MIB
    config = AllocatorConfig(expandable_segments=True)
    assert play(growing, config).reserved_bytes == 60 * MIB
    exact = play(growing, config, 60 * MIB)  # fits to the byte, nothing given back
    assert (exact.reserved_bytes, exact.retries) == (60 * MIB, 0)
    with pytest.raises(OutOfMemory):
        play(growing, config, 60 * MIB - 1)


def test_expandable_segments_unmap_whole_granules_inside_a_free_block():
    actions = []
    model = CachingAllocator(
        AllocatorConfig(expandable_segments=True),
        observer=lambda action, at, size, stream: actions.append((action, size)),
    )
    first, second = model.malloc(50 * MIB), model.malloc(30 * MIB)
    model.free(first)
    model.empty_cache()  # of 50 MiB at the start, two granules of 20 MiB lie wholly inside
    assert model.reserved_bytes == 40 * MIB
    assert actions == [("segment_map", 60 * MIB), ("segment_map", 20 * MIB), ("segment_unmap", 40 * MIB)]
    model.free(second)
    model.empty_cache()
    assert model.reserved_bytes == 0
