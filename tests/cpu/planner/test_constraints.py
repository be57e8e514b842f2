"""What people type is read with all mistakes at once; what a plan must keep to is asked of the fidelity."""

import pytest

from snugfit import process_memory
from snugfit.contexts import Context, measured
from snugfit.devices import DEVICES, device_named
from snugfit.errors import InputError, RecipeError
from snugfit.planner.constraints import Constraints, constraints_from
from snugfit.planner.margin import margin_for
from snugfit.process_memory import _left_in_group, kernel_bytes
from snugfit.recipe import Recipe
from snugfit.workload import Workload

WORKLOAD = Workload(batch_size=64)


def test_text_is_read_as_on_the_command_line():
    read = constraints_from(
        allow="rounding, different",
        pin={"checkpoint": "blocks:3", "microbatch-size": "none", "offload_optimizer": "no"},
        forbid=["step-in-backward"],
        host_budget="2GiB",
    )
    assert read.pins == {"checkpoint": "blocks:3", "microbatch_size": None, "offload_optimizer": False}
    assert read.forbidden == {"step_in_backward"} and read.host_budget_bytes == 2 * 2**30
    assert read.allow == {"exact", "rounding", "different"}
    assert read.is_free("precision") and not read.is_free("checkpoint") and not read.is_free("step_in_backward")


@pytest.mark.parametrize("device", ["rtx-3090", device_named("rtx-3090"), "RTX 3060 12GB"])
def test_of_the_machine_of_a_card_by_its_name_nobody_knows_what_is_free(device):
    assert constraints_from(device=device).host_budget_bytes is None
    assert constraints_from(device=device, host_budget="1GiB").host_budget_bytes == 2**30


@pytest.mark.parametrize("device", [None, "cpu", "local", "CPU", device_named("cpu")])
def test_on_this_machine_what_is_free_counts(device, monkeypatch):
    monkeypatch.setattr(process_memory, "free_host_bytes", lambda: 12345)
    assert constraints_from(device=device).host_budget_bytes == 12345


def test_names_become_a_tuple_in_pins_too():
    assert constraints_from(pin={"checkpoint": "a.0,a.1"}).pins == {"checkpoint": ("a.0", "a.1")}


def test_all_mistakes_come_at_once():
    with pytest.raises(RecipeError) as error:
        constraints_from(
            pin={"checkpont": "all", "workers": "many", "precision": "fp32"}, forbid=["precision", "speed"]
        )
    text = str(error.value)
    assert len(error.value.problems) == 4
    for part in (
        "did you mean 'checkpoint'",
        "workers is 'many'",
        "precision is pinned to fp32 and forbidden",
        "'speed'",
    ):
        assert part in text


def test_pins_that_contradict_each_other():
    with pytest.raises(RecipeError, match="selective"):
        constraints_from(pin={"checkpoint": "selective", "offload_activations": "all"})


@pytest.mark.parametrize("given", [{"allow": "exakt"}, {"host_budget": "8 gigs"}, {"host_budget": -1}])
def test_bad_words_and_sizes(given):
    with pytest.raises(InputError):
        constraints_from(**given)


def test_only_allowed_fidelity_unless_pinned():
    exact = Constraints()
    assert exact.refusal(Recipe(checkpoint="all", microbatch_size=4), WORKLOAD) is None
    assert "rounding" in exact.refusal(Recipe(precision="bf16-mixed"), WORKLOAD)
    assert "different" in exact.refusal(Recipe(microbatch_size=4), WORKLOAD.replace(dropout=True))
    assert Constraints(pins={"precision": "bf16-mixed"}).refusal(Recipe(precision="bf16-mixed"), WORKLOAD) is None
    widened = Constraints(allow=frozenset({"exact", "rounding"}))
    assert widened.refusal(Recipe(precision="bf16-mixed"), WORKLOAD) is None
    assert "different" in widened.refusal(Recipe(optimizer="sgd"), WORKLOAD)
    assert "pinned" in Constraints(pins={"checkpoint": "all"}).refusal(Recipe(), WORKLOAD)
    assert "forbidden" in Constraints(forbidden=frozenset({"inplace"})).refusal(Recipe(inplace=True), WORKLOAD)
    assert "contradicts" in exact.refusal(Recipe(step_in_backward=True, microbatch_size=4), WORKLOAD)


def test_the_margin_is_rounded_up_and_says_where_it_is_from():
    for kind in ("cpu", "cuda"):
        margin = margin_for(kind)
        assert 0 < margin.share < 0.1 and margin.source.startswith(f"{margin.share * 100:g} %")
        assert margin.bytes_of(1001) == -(-1001 * margin.share // 1)


def test_the_margin_has_room_for_the_largest_context_that_was_read():
    context = Context(typical_bytes=300, range_bytes=(250, 390), source="published")
    margin = margin_for("cuda", context)
    assert margin.bytes_of(1000) == 90 and margin.bytes_of(100_000) == 3000 and "at least the 90 B" in margin.source
    assert margin_for("cuda", measured(300)) == margin_for("cuda")
    for card in DEVICES:
        if card.compute_capability is not None:
            whole = margin_for("cuda", card.context).bytes_of(card.memory_bytes)
            assert card.context_bytes + whole >= card.context.range_bytes[1]


def test_free_host_memory_is_read_from_the_system(tmp_path):
    (tmp_path / "meminfo").write_text("MemTotal: 10 kB\nMemAvailable:    7 kB\n")
    assert kernel_bytes(tmp_path / "meminfo")["MemAvailable"] == 7 * 1024 and kernel_bytes(tmp_path / "none") == {}
    assert _left_in_group(tmp_path) is None
    for name, text in (("max", "1000\n"), ("current", "600\n"), ("stat", "anon 5\ninactive_file 100\n")):
        (tmp_path / f"memory.{name}").write_text(text)
    assert _left_in_group(tmp_path) == 500
    (tmp_path / "memory.max").write_text("max\n")
    assert _left_in_group(tmp_path) is None
