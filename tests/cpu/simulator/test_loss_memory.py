"""Memory of the loss over a vocabulary: predicted by the code that runs, and the logits are gone in both."""

import pytest
import torch

from snugfit import Recipe

WORDS, TOKENS = 8000, 4 * 64


def llama(tied):
    def build():
        import transformers as t

        t.logging.set_verbosity_error()
        shape = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
        config = t.LlamaConfig(
            **shape, num_key_value_heads=2, vocab_size=WORDS, tie_word_embeddings=tied, use_cache=False
        )
        return t.LlamaForCausalLM(config)

    return build


def tokens():
    ids = torch.zeros(4, 64, dtype=torch.long)
    mask = torch.ones_like(ids)
    mask[0, 32:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.clone()}


def peaks(truth, pool, tied, **recipe):
    case, made = truth.Case(llama(tied), tokens, None, True), Recipe(**recipe)
    return truth.measured(case, made)[0], truth.predicted(case, made, pool)[0]


@pytest.mark.parametrize(
    ("tied", "recipe"),
    [
        (False, {"optimizer": "sgd"}),
        (True, {"optimizer": "sgd"}),
        (True, {"optimizer": "sgd", "step_in_backward": True}),
        (False, {"optimizer": "sgd", "precision": "bf16-true"}),
        (True, {"optimizer": "sgd", "precision": "bf16-mixed", "checkpoint": "all"}),
        (False, {"microbatch_size": 1}),
    ],
)
def test_predicted_peak_is_the_measured_one(truth, pool, tied, recipe):
    measured, predicted = peaks(truth, pool, tied, loss_impl="chunked", **recipe)
    assert abs(predicted / measured - 1) <= 0.02


def test_the_peak_falls_by_the_logits(truth, pool):
    logits_bytes = TOKENS * WORDS * 4
    for full, chunked in zip(
        peaks(truth, pool, True, optimizer="sgd"),
        peaks(truth, pool, True, optimizer="sgd", loss_impl="chunked"),
        strict=True,
    ):
        assert full > 3 * logits_bytes, "the logits shifted, their log-softmax and its gradient"
        assert chunked < logits_bytes


def test_what_follows_an_operator_written_in_python_is_still_known_by_module_on_a_card(pool):
    from snugfit.fake_device.personality import Personality
    from snugfit.simulator.given_training import simulate_training

    recording = simulate_training(
        llama(False), Recipe(loss_impl="chunked"), tokens(), personality=Personality(kind="cuda"), pool=pool
    )
    for phase in ("forward", "backward"):
        modules = {run.module for run in recording.trace.runs if run.phase == phase}
        assert any(module.startswith("model.layers.1.mlp") for module in modules), phase
    last = {run.module for run in recording.trace.runs[-3000:] if run.phase == "backward"}
    assert any(module.startswith("model.layers.0") for module in last), "the second step comes after the operator, too"
