"""What libraries are told where they look at values: no sequences packed, padding kept, every object matched."""

from __future__ import annotations

import sys

import pytest
import torch
from benchmarks.cpu_truth import Case, measured, predicted
from torch import distributions, nn
from torch.distributions import Distribution

import snugfit
from snugfit import Recipe
from snugfit.attributes import replaced
from snugfit.fake_device.personality import Personality
from snugfit.simulator.given_training import simulate_training
from snugfit.values.library_answers import MATCHED, PACKED_ROWS, PADDED, UNPACKED, VALID, library_answers
from snugfit.workers.pool import shared_pool

transformers = pytest.importorskip("transformers")


def build(layers=3):
    config = transformers.LlamaConfig(
        hidden_size=64, num_hidden_layers=layers, num_attention_heads=4, num_key_value_heads=2, intermediate_size=192,
        vocab_size=300, use_cache=False,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config)


def answers(answered):
    return replaced(library_answers(None, answered, lambda _: None))


def test_nothing_happens_without_the_library(monkeypatch):
    for name in [name for name in sys.modules if name.partition(".")[0] in ("transformers", "torchmetrics")]:
        monkeypatch.delitem(sys.modules, name)
    changed = [owner for owner, _, _ in library_answers(None, pytest.fail, lambda _: None)]
    known = [
        torch,
        *(torch.nested,) * 3,
        torch.optim.LBFGS,
        torch._VF,
        torch._VF,
        nn.utils.rnn,
        Distribution,
        Distribution,
        nn.SyncBatchNorm,
    ]
    assert changed == known


# -- packed sequences: a decoder is simulated as it runs, without a mask where nothing is packed or padded


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_no_mask_is_made_for_ordinary_batches(kind):
    ids = torch.zeros(2, 16, dtype=torch.long)
    recording = simulate_training(
        build, Recipe(precision="bf16-true"), {"input_ids": ids, "labels": ids}, personality=Personality(kind=kind)
    )
    ran = {run.operator for run in recording.trace.runs}
    assert UNPACKED in recording.answered
    assert "aten.where.self" not in ran and "aten.bitwise_and.Tensor" not in ran
    kernel = "flash_attention_for_cpu" if kind == "cpu" else "flash_attention"
    assert any(kernel in name for name in ran)


def test_the_library_is_left_as_it_was():
    from transformers import masking_utils

    original, padding = masking_utils.find_packed_sequence_indices, masking_utils._ignore_causal_mask_sdpa
    said: list[str] = []
    with answers(said.append):
        assert masking_utils.find_packed_sequence_indices(torch.arange(4)[None] % 2) is None
        assert masking_utils._ignore_causal_mask_sdpa is not padding
    assert masking_utils.find_packed_sequence_indices is original and said == [UNPACKED]
    assert masking_utils._ignore_causal_mask_sdpa is padding


def test_positions_that_a_batch_brings_are_those_of_packed_samples():
    ids = torch.arange(2 * 256).view(2, 256) % 300
    packed = {"input_ids": ids, "position_ids": torch.arange(256).expand(2, 256) % 64, "labels": ids}
    case, recipe = Case(build, lambda: packed, None, True), Recipe(checkpoint="all")
    assert predicted(case, recipe, shared_pool())[0] == pytest.approx(measured(case, recipe)[0], rel=0.005)
    assert PACKED_ROWS in snugfit.estimate(build(), packed, device="rtx-4090").answered


# -- a padding mask has no values in a simulation: it is kept, which is right where every microbatch has padding


def batch(padded_rows):
    ids = torch.zeros(4, 32, dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[:padded_rows, 16:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.zeros_like(ids)}


def peaks(padded_rows):
    case = Case(build, lambda: batch(padded_rows), None, True)
    recipe = Recipe(precision="bf16-mixed", microbatch_size=1)
    return predicted(case, recipe, shared_pool())[0], measured(case, recipe)[0]


def test_padding_in_every_microbatch_is_predicted():
    foreseen, real = peaks(padded_rows=4)
    assert foreseen == pytest.approx(real, rel=0.001)


def test_microbatches_without_padding_take_less_than_is_predicted():
    (foreseen, real), (same, most) = peaks(padded_rows=1), peaks(padded_rows=4)
    assert foreseen == same, "the values of a mask cannot be seen"
    assert real < most and foreseen == pytest.approx(real, rel=0.03)


def test_the_estimate_says_that_padding_was_kept():
    padded = snugfit.estimate(build(), batch(1), device="rtx-4090")
    plain = {name: value for name, value in batch(0).items() if name != "attention_mask"}
    assert PADDED in padded.answered
    assert PADDED not in snugfit.estimate(build(), plain, device="rtx-4090").answered


# -- detectors that match predictions with objects by costs: sizes follow from the number of objects alone


@pytest.mark.parametrize("name", ["hf:yolos"])
def test_a_set_based_detector_takes_what_was_predicted(name, pool):
    from benchmarks.zoo_row import SUBJECTS, compared

    row = compared(SUBJECTS[name](), pool)
    assert abs(row["ratio"] - 1) <= 0.01, row
    assert MATCHED in row["answered"]


def test_values_are_matched_as_ever():
    import transformers.loss.loss_for_object_detection as losses

    with answers(lambda _: None):
        chosen = losses.linear_sum_assignment(torch.tensor([[5.0, 0.0], [0.0, 5.0], [9.0, 9.0]]))
    assert [part.tolist() for part in chosen] == [[0, 1], [1, 0]]


# -- distributions of torch look at their arguments, LBFGS at its progress

LOOKS = {"validate_args": True}
"""The default, which torch's compiler switches off for its whole process."""


def normal(x):
    return distributions.Normal(x, x.exp(), **LOOKS).log_prob(x).mean()


def chosen(x):
    found = distributions.Categorical(logits=x, **LOOKS)
    return found.log_prob(found.sample()).mean() - found.entropy().mean()


def squashed(x):
    inner = distributions.Normal(x, x.exp(), **LOOKS)
    found = distributions.TransformedDistribution(inner, [distributions.TanhTransform()], **LOOKS)
    return found.log_prob(found.rsample()).mean()


def correlated(x):
    scale = torch.eye(x.shape[1], device=x.device) * x.exp().mean()
    return distributions.MultivariateNormal(x, scale_tril=scale, **LOOKS).log_prob(x).mean()


def two(x):
    first, second = (distributions.Beta(x.exp() + more, x.exp(), **LOOKS) for more in (0, 1))
    return distributions.kl_divergence(first, second).mean()


def estimate_loss(pool, loss, **given):
    batch = torch.zeros(4, 6)
    return snugfit.estimate(
        nn.Linear(6, 6), batch, loss=lambda output, _: loss(output), device="cpu", pool=pool, **given
    )


@pytest.mark.parametrize("loss", [normal, chosen, squashed, correlated, two])
def test_arguments_of_distributions_are_taken_to_be_valid(pool, loss):
    found = estimate_loss(pool, loss)
    assert VALID in found.answered
    assert not [one for one in found.answered if "branch" in one]


def stops_early(x):
    divergence = normal(x)
    return divergence if divergence > 0.02 else 2 * divergence


def checks_first(x):
    distributions.Normal(x, x.exp(), **LOOKS)
    return x.mean() if (x > 0).all() else 2 * x.mean()


def spectrum(x):
    strongest = torch.fft.rfft(x).abs().mean(0).topk(2).indices.detach().cpu().numpy()
    return x[:, : int(strongest[0]) + 1].mean()


@pytest.mark.parametrize(
    ("loss", "assumption", "value"),
    [(stops_early, "branch", True), (checks_first, "branch", False), (spectrum, "integer", 3)],
)
def test_what_the_code_itself_asks_is_still_asked(pool, loss, assumption, value):
    with pytest.raises(snugfit.CannotSimulateError, match=rf"--assume {assumption}="):
        estimate_loss(pool, loss)
    found = estimate_loss(pool, loss, assume={assumption: value})
    assert any(f"assumed {assumption}=" in one for one in found.answered)


def test_what_a_closure_asks_is_still_asked(pool):
    def step(model, optimizer, batch):
        def closure():
            loss = model(batch).square().mean()
            return loss if loss > 1 else 2 * loss

        optimizer.step(closure)

    with pytest.raises(snugfit.CannotSimulateError, match="--assume branch="):
        snugfit.estimate(
            nn.Linear(4, 4), torch.zeros(2, 4), step=step, optimizer=torch.optim.LBFGS, device="cpu", pool=pool
        )
