"""The loss without logits in real models: the same loss and gradients, ordinary outputs, refusals with their reason."""

import copy

import pytest
import torch
import torch.nn.functional as F
from small_models import make_model
from torch import nn

import snugfit
from snugfit import InputError, Recipe, SnugfitWarning
from snugfit.measure.allocator_events import AllocatorEvents, warm_up
from snugfit.techniques.loss_impl.apply import LossImpl
from snugfit.techniques.loss_impl.deferred_logits import DeferredLogits

SHAPE = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "vocab_size": 211,
    "max_position_embeddings": 64,
    "use_cache": False,
}
STILL = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def build(name, **more):
    import transformers as t

    t.logging.set_verbosity_error()
    few = {**SHAPE, "num_key_value_heads": 2}
    makers = {
        "llama": lambda: t.LlamaForCausalLM(t.LlamaConfig(**{**few, **more})),
        "tied": lambda: t.LlamaForCausalLM(t.LlamaConfig(**few, tie_word_embeddings=True)),
        "capped": lambda: t.Gemma2ForCausalLM(t.Gemma2Config(**few, head_dim=8, final_logit_softcapping=3.0)),
        "experts": lambda: t.MixtralForCausalLM(t.MixtralConfig(**few, num_local_experts=4, output_router_logits=True)),
        "scaled": lambda: t.CohereForCausalLM(t.CohereConfig(**few)),
        "biased": lambda: t.BertForMaskedLM(t.BertConfig(**SHAPE, **STILL)),
    }
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return makers[name]()


def tokens(samples=3, length=17):
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 200, (samples, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[-1, length // 2 :] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def trained(model, batch, recipe, **arguments):
    """Returns a step's loss and gradients."""
    model = copy.deepcopy(model)
    gradients = {}
    for name, weight in model.named_parameters():
        weight.register_post_accumulate_grad_hook(
            lambda weight, name=name: gradients.__setitem__(name, weight.grad.double())
        )
    trainer = snugfit.prepare(model, recipe, device="cpu", optimizer="sgd", lr=0.0, **arguments)
    return trainer.step(batch).double(), gradients, trainer


def assert_same(plain, ours, tolerance):
    assert float(ours[0]) == pytest.approx(float(plain[0]), abs=10 * tolerance)
    assert plain[1].keys() == ours[1].keys()
    largest = max(gradient.norm() for gradient in plain[1].values())
    for name, gradient in plain[1].items():
        assert (ours[1][name] - gradient).norm() <= tolerance * (gradient.norm() + 1e-3 * largest), name


@pytest.mark.parametrize("name", ["llama", "tied", "capped", "experts", "scaled", "biased"])
def test_loss_impl_matches_plain_training(name):
    model, batch = build(name), tokens()
    plain = trained(model, batch, Recipe())
    assert_same(plain, trained(model, batch, Recipe(loss_impl="chunked")), 1e-5)


@pytest.mark.parametrize(
    ("name", "recipe", "tolerance"),
    [
        ("tied", {"precision": "bf16-mixed"}, 0.03),
        ("capped", {"precision": "bf16-true"}, 0.05),
        ("tied", {"precision": "16-mixed"}, 0.01),
        ("capped", {"checkpoint": "all"}, 1e-5),
        ("tied", {"offload_activations": "all"}, 1e-5),
        ("tied", {"step_in_backward": True}, 1e-5),
    ],
)
def test_with_other_techniques(name, recipe, tolerance):
    model, batch = build(name), tokens()
    plain = trained(model, batch, Recipe(**recipe))
    assert_same(plain, trained(model, batch, Recipe(**recipe, loss_impl="chunked")), tolerance)


class Small(nn.Module):
    """A language model of nobody's library, in fp64, that returns its loss when it is given labels."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(211, 16)
        self.mixer = nn.Linear(16, 16)
        self.head = nn.Linear(16, 211)

    def forward(self, input_ids, labels=None, weight=None, smoothing=0.0):
        logits = self.head(torch.tanh(self.mixer(self.embedding(input_ids))))
        if labels is None:
            return logits
        shifted = logits[:, :-1, :].contiguous()
        loss = F.cross_entropy(
            shifted.view(-1, shifted.size(-1)), labels[:, 1:].reshape(-1), weight=weight, label_smoothing=smoothing
        )
        return {"loss": loss, "logits": logits}


def make_small():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Small().double()


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_a_model_of_ones_own_to_the_last_digit(smoothing):
    batch = {**tokens(), "smoothing": smoothing}
    del batch["attention_mask"]
    plain = trained(make_small(), batch, Recipe())
    assert_same(plain, trained(make_small(), batch, Recipe(loss_impl="chunked")), 1e-10)


def test_microbatches_weighted_by_their_tokens():
    batch = tokens(samples=5)
    del batch["attention_mask"]

    def counted(piece):
        return (piece["labels"][:, 1:] != -100).sum()

    plain = trained(make_small(), batch, Recipe(), loss_weight=counted)
    pieces = Recipe(loss_impl="chunked", microbatch_size=2)
    ours = trained(make_small(), batch, pieces, loss_weight=counted)
    assert float(ours[0]) == pytest.approx(float(plain[0]), abs=1e-10)
    final = {}
    for recipe in (Recipe(), pieces):
        model = make_small()
        snugfit.prepare(model, recipe, device="cpu", optimizer="sgd", lr=1.0, loss_weight=counted).step(batch)
        final[recipe] = model.state_dict()
    for name, weight in final[pieces].items():
        torch.testing.assert_close(weight, final[Recipe()][name], rtol=0, atol=1e-10)


def test_a_loss_of_the_callers_outside_of_the_model():
    batch = tokens()

    def loss(output, batch):
        assert getattr(output, "loss", None) is None  # as of any tensor; a profile asks
        return F.cross_entropy(output.flatten(0, 1), batch["labels"].flatten(), reduction="sum")

    def forward(model, batch):
        return model(batch["input_ids"])

    arguments = {"loss": loss, "forward": forward}
    plain = trained(make_small(), batch, Recipe(), **arguments)
    assert_same(plain, trained(make_small(), batch, Recipe(loss_impl="chunked"), **arguments), 1e-10)


def test_num_items_in_batch():
    batch = {**tokens(), "num_items_in_batch": torch.tensor(77)}
    plain = trained(build("llama"), batch, Recipe())
    assert_same(plain, trained(build("llama"), batch, Recipe(loss_impl="chunked")), 1e-5)


def test_evaluation_has_a_loss_with_labels_and_logits_without():
    model, batch = build("llama"), tokens()
    plain = snugfit.prepare(copy.deepcopy(model), Recipe(), device="cpu")
    ours = snugfit.prepare(model, Recipe(loss_impl="chunked"), device="cpu")
    for trainer in (plain, ours):
        trainer.model.eval()
    expected, found = plain.evaluate_batch(batch), ours.evaluate_batch(batch)
    assert float(found.loss) == pytest.approx(float(expected.loss), rel=1e-6)
    assert isinstance(found.logits, DeferredLogits)
    assert torch.equal(found.logits.argmax(-1), expected.logits.argmax(-1)), "asked for, they are computed after all"
    unlabelled = {name: value for name, value in batch.items() if name != "labels"}
    assert torch.equal(ours.evaluate_batch(unlabelled).logits, plain.evaluate_batch(unlabelled).logits)
    assert torch.equal(model(**unlabelled).logits, plain.model(**unlabelled).logits), "outside of the trainer too"
    assert model.state_dict().keys() == plain.model.state_dict().keys()


def test_another_prepare_takes_it_off():
    model = build("llama")
    snugfit.prepare(model, Recipe(loss_impl="chunked"), device="cpu")
    assert "forward" in vars(model.lm_head)
    snugfit.prepare(model, Recipe(), device="cpu")
    assert "forward" not in vars(model.lm_head)
    assert "forward" not in vars(model)


def test_logits_are_really_gone():
    batch = tokens(samples=4, length=32)
    warm_up()

    def peak(recipe):
        model = build("llama", vocab_size=20000)
        trainer = snugfit.prepare(model, recipe, device="cpu", optimizer="sgd")
        events = AllocatorEvents()
        events.start()
        trainer.step(batch)
        events.stop()
        return events.peak_bytes

    logits_bytes = 4 * 32 * 20000 * 4
    full, chunked = peak(Recipe()), peak(Recipe(loss_impl="chunked"))
    assert full > 2 * logits_bytes
    assert full - chunked > 1.9 * logits_bytes
    assert chunked < logits_bytes


def test_what_cannot_be_left_out_is_refused_by_name():
    class Greedy(Small):
        def forward(self, input_ids, labels):
            logits = self.head(self.embedding(input_ids))
            return F.cross_entropy(logits.flatten(0, 1), labels.flatten()) + 1e-4 * logits.logsumexp(-1).mean()

    batch = tokens()
    del batch["attention_mask"]
    trainer = snugfit.prepare(Greedy(), Recipe(loss_impl="chunked"), device="cpu")
    with pytest.raises(InputError, match=r"loss_impl='chunked': .*\(logsumexp\).*loss_impl='full'"):
        trainer.step(batch)
    trainer = snugfit.prepare(Small(), Recipe(loss_impl="chunked"), device="cpu")
    with pytest.raises(InputError, match="weights of classes"):
        trainer.step({**batch, "weight": torch.ones(211)})


@pytest.mark.parametrize(
    ("make", "recipe", "message"),
    [
        (lambda: make_model("mlp", torch.float32), {}, "found no head over a vocabulary in MLP"),
        (Small, {"compile": "eager"}, "contradicts compile='eager'"),
    ],
)
def test_refused_at_once(make, recipe, message):
    with pytest.raises(InputError, match=message):
        snugfit.prepare(make(), Recipe(loss_impl="chunked", **recipe), device="cpu")


def test_fused_needs_a_gpu():
    with pytest.raises(InputError, match=r"runs on CUDA only.*loss_impl='chunked'"):
        snugfit.prepare(make_small(), Recipe(loss_impl="fused"), device="cpu")


def test_an_adapter_on_the_head_is_refused():
    peft = pytest.importorskip("peft")
    model = build("llama")
    peft.inject_adapter_in_model(peft.LoraConfig(r=2, target_modules=["lm_head"]), model)
    with pytest.raises(InputError, match=r"with an adapter.*adapter_head"):
        snugfit.prepare(model, Recipe(loss_impl="chunked"), device="cpu")


def test_a_small_vocabulary_warns():
    class Few(Small):
        def __init__(self):
            super().__init__()
            self.embedding, self.head = nn.Embedding(12, 16), nn.Linear(16, 12)

    with pytest.warns(SnugfitWarning, match="has no effect"):
        snugfit.prepare(Few(), Recipe(loss_impl="chunked"), device="cpu")


def test_what_a_model_itself_cannot_say_stops_no_other_recipe():
    class Odd(nn.Module):
        def get_output_embeddings(self):
            raise NotImplementedError

    assert LossImpl.may_gain(Odd()) and not LossImpl.may_gain(nn.Linear(2, 2))
