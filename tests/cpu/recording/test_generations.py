"""One recording for several generations of cards: only where recording each of them gives the same."""

import pytest
import torch

from snugfit.devices import DEVICES
from snugfit.fake_device.personality import Personality
from snugfit.recipe import Recipe
from snugfit.recording.cublas import CUBLAS, workspace_bytes
from snugfit.recording.generations import (
    CAPABILITIES,
    GENERATIONS,
    CardQuestions,
    generation_of,
    on_generation,
)
from snugfit.simulator.given_training import record_given


class Attention(torch.nn.Module):
    def __init__(self, size=64):
        super().__init__()
        self.into, self.out, self.size = torch.nn.Linear(2 * size, 6 * size), torch.nn.Linear(2 * size, 4), size

    def forward(self, tokens):
        parts = self.into(tokens).unflatten(-1, (3, 2, self.size)).permute(2, 0, 3, 1, 4)
        found = torch.nn.functional.scaled_dot_product_attention(*parts)
        return self.out(found.transpose(1, 2).flatten(2)).mean(1)


class Asks(torch.nn.Module):
    def __init__(self, question):
        super().__init__()
        self.inner, self.question = torch.nn.Linear(8, 4), question

    def forward(self, x):
        return self.inner(x).relu() if self.question() else self.inner(x)


def convolution():
    return torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.Flatten(), torch.nn.LazyLinear(4)
    )


def loss(output, batch):
    return torch.nn.functional.cross_entropy(output.float(), batch[1])


TOKENS, IMAGES, ROWS = (2, 16, 128), (2, 3, 8, 8), (2, 8)
AMPERE_AND_ON = tuple(one for one in CAPABILITIES if one >= (8, 0))
CASES = {
    "convolutions": (convolution, IMAGES, {}, CAPABILITIES),
    "attention": (Attention, TOKENS, {}, CAPABILITIES),
    "attention, 16 bits": (Attention, TOKENS, {"precision": "bf16-true"}, AMPERE_AND_ON),
    "attention, wide heads": (lambda: Attention(96), (2, 16, 192), {}, CAPABILITIES),
    "asks for the capability": (lambda: Asks(lambda: torch.cuda.get_device_capability() >= (9, 0)), ROWS, {}, ((8, 0),)),
    "asks for bf16": (lambda: Asks(lambda: torch.cuda.is_bf16_supported(False)), ROWS, {}, AMPERE_AND_ON),
    "asks for memory": (lambda: Asks(lambda: torch.cuda.memory_allocated() > 2**24), ROWS, {}, ()),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_recording_stands_for_the_cards_that_record_the_same(pool, name):
    build, shape, fields, same = CASES[name]
    batch = (torch.empty(shape, device="meta"), torch.empty(2, dtype=torch.int64, device="meta"))
    recorded = {
        card: pool.call(record_given, build, batch, {"loss": loss}, Recipe(**fields), Personality(capability=card))
        for card in CAPABILITIES
    }
    reference = recorded[8, 0]
    assert reference.same_on == same
    for card in same:
        assert reference.on(card) == recorded[card]
    for card in set(CAPABILITIES) - set(same) - {(8, 0)}:
        if not name.startswith("asks"):  # these ask whether they could differ; some then do not
            assert on_generation(reference.trace, card) != recorded[card].trace


def test_every_card_of_the_table_is_asked_for():
    assert set(CAPABILITIES) == {card.compute_capability for card in DEVICES if card.compute_capability}


def test_workspace_of_cublas_has_the_size_of_the_generation(pool):
    batch = (torch.empty(ROWS, device="meta"), torch.empty(2, dtype=torch.int64, device="meta"))
    arguments = (lambda: torch.nn.Linear(8, 4), batch, {"loss": loss}, Recipe(), Personality())
    recorded = pool.call(record_given, *arguments)
    for generation in GENERATIONS:
        sizes = {row.nbytes for row in recorded.on(generation).trace.storages if row.operator == CUBLAS}
        assert sizes == {workspace_bytes(generation)}
    assert recorded.on((7, 5)) is recorded


def test_questions_leave_out_who_would_be_told_something_else():
    card = CardQuestions((8, 6))
    assert card.ask(lambda capability: capability >= (8, 0)) is True
    assert card.same == AMPERE_AND_ON
    assert set(card.differing(lambda capability: capability[0])) == set(CAPABILITIES) - {(8, 0), (8, 6), (8, 9)}
    assert card.same == AMPERE_AND_ON  # only looked
    card.leave_out()
    assert card.same == ()


@pytest.mark.parametrize(
    ("capability", "generation"),
    [((5, 2), (7, 5)), ((7, 5), (7, 5)), ((8, 0), (8, 0)), ((8, 9), (8, 0)), ((9, 0), (9, 0)), ((12, 0), (9, 0))],
)
def test_every_card_belongs_to_a_generation(capability, generation):
    assert generation_of(capability) == generation
