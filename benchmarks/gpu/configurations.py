"""The configurations whose predictions are compared with measurements, chosen for spread. Imports no torch.

Every line is a model of `subjects.py` and what differs from plain training: fields of the recipe, training settings, `scale`
(samples of the batch, as a factor) and `evaluate`. A configuration is in the validation half or in the tuning half by a
checksum of its name; rows of the validation half are never looked at to improve anything.

Add lines as techniques land. Do not rename or remove one because of its result.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.part import Case, Place, half_of, spread
from benchmarks.gpu.subjects import SUBJECTS
from snugfit.recipe import Recipe
from snugfit.workload import STORED_OPTIMIZERS, Workload

if TYPE_CHECKING:
    from benchmarks.gpu.training_run import TrainingRun
    from snugfit.runs.request import Request


MODEL_FILE = Path(__file__).resolve().parent / "train_models.py"
_STEPS = {"max_steps": 3, "eval_every": 1}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Configuration:
    """One line of the list."""

    subject: str
    """A key of `SUBJECTS`."""
    scale: float
    """Samples of the batch, as a factor."""
    evaluate: bool
    """Whether a batch is evaluated between the steps."""
    recipe: dict[str, Any]
    """Fields of the recipe that are not at their default."""
    settings: dict[str, Any]
    """Training settings that are not at their default, `optimizer` included."""

    @property
    def name(self) -> str:
        """Its name: the model and all that differs from plain training."""
        parts = [f"{key}={value}" for key, value in {**self.settings, **self.recipe}.items()]
        if self.scale != 1:
            parts.append(f"batch x{self.scale:g}")
        if not self.evaluate:
            parts.append("no evaluation")
        return " ".join([self.subject, *parts]) if parts else f"{self.subject} plain"

    @property
    def features(self) -> list[str]:
        """What it shows: model, family, each technique."""
        subject = SUBJECTS[self.subject]
        found = [self.subject, subject.family, *(f"{key}={value}" for key, value in self.recipe.items())]
        found += [key if key != "optimizer" else str(value) for key, value in self.settings.items()]
        return found + ([] if self.scale == 1 else ["another batch"])

    @property
    def techniques(self) -> list[str]:
        """Recipe fields by which the report groups it; `none` for plain training."""
        return list(self.recipe) or ["none"]

    @property
    def packages(self) -> tuple[str, ...]:
        """Packages without which it cannot run."""
        return SUBJECTS[self.subject].packages + (("peft",) if "adapter" in self.recipe else ())

    def samples(self, kind: str) -> int:
        """Returns the samples of a batch.

        Args:
            kind: `cuda` or `cpu`.
        """
        return max(1, round(self.scale * SUBJECTS[self.subject].samples[kind]))

    def run(self, kind: str) -> TrainingRun:
        """Returns what is trained.

        Args:
            kind: `cuda` or `cpu`.
        """
        from benchmarks.gpu.training_run import TrainingRun

        subject, samples = SUBJECTS[self.subject], self.samples(kind)
        arguments = {"loss": subject.loss, "loss_weight": subject.loss_weight, "batch_size": samples, **self.settings}
        return TrainingRun(
            build=functools.partial(subject.build, kind),
            batch=functools.partial(subject.batch, kind, samples),
            recipe=self.held(kind),
            arguments=arguments,
            evaluate=self.evaluate,
        )

    def held(self, kind: str) -> Recipe:
        """Returns the recipe, its microbatches in samples.

        Args:
            kind: `cuda` or `cpu`.
        """
        recipe = dict(self.recipe)
        if "microbatch_size" in recipe:
            recipe["microbatch_size"] = max(1, self.samples(kind) // recipe["microbatch_size"])
        return Recipe(**recipe)

    def train_words(self, kind: str) -> list[str] | None:
        """Returns the words of the `snugfit train` that is this configuration; None where it reads no such data.

        Args:
            kind: `cuda` or `cpu`.
        """
        samples, shape = self.samples(kind), SUBJECTS[self.subject].train_options(kind)
        if shape is None:
            return None
        words = ["train", f"{MODEL_FILE}:build", "--data", "random", "--device", kind, "--predict"]
        for text in self._model_args(kind):
            words += ["--model-arg", text]
        options = {**shape, "samples": 4 * samples, **_STEPS, "batch_size": samples, **self.settings}
        for key, value in {**options, **self.held(kind).to_mapping(defaults=False)}.items():
            words += [f"--{key.replace('_', '-')}", *([] if value is True else [str(value)])]
        return words + ([] if self.evaluate else ["--no-evaluate"])

    def request(self, kind: str) -> Request | None:
        """Returns what those words ask for.

        Args:
            kind: `cuda` or `cpu`.
        """
        from snugfit.runs.request import Request

        samples, shape = self.samples(kind), SUBJECTS[self.subject].train_options(kind)
        if shape is None:
            return None
        unsaid = dict.fromkeys(("image_size", "seq_len", "text_column", "label_column", "prompt_column"))
        return Request(
            **{**unsaid, **shape},
            model=f"{MODEL_FILE}:build",
            model_args=self._model_args(kind),
            data="random",
            samples=4 * samples,
            device=kind,
            packing=False,
            settings=Workload.from_mapping(
                {**_STEPS, "batch_size": samples, "evaluate": self.evaluate, **self.settings}
            ),
        )

    def _model_args(self, kind: str) -> tuple[str, ...]:
        return (f"subject={self.subject}", f"kind={kind}")


def line(subject: str, scale: float = 1, evaluate: bool = True, **fields: Any) -> Configuration:
    """Returns a configuration.

    Args:
        subject: A key of `SUBJECTS`.
        scale: Samples of the batch, as a factor.
        evaluate: Whether a batch is evaluated between the steps.
        **fields: Fields of the recipe and training settings; `microbatch_size` is in parts of the batch here, and
            `optimizer` may be a storage of the recipe's, such as adamw8bit.
    """
    if fields.get("optimizer") in STORED_OPTIMIZERS:
        settings = {}
    else:
        settings = {key: value for key, value in fields.items() if key in Workload.__dataclass_fields__}
    recipe = {key: value for key, value in fields.items() if key not in settings}
    return Configuration(subject=subject, scale=scale, evaluate=evaluate, recipe=recipe, settings=settings)


_MIXED, _TRUE, _SCALED = {"precision": "bf16-mixed"}, {"precision": "bf16-true"}, {"precision": "16-mixed"}
_ALL = {"checkpoint": "all"}
_AWAY = {"checkpoint": "all", "offload_activations": "checkpoints"}
_LORA, _QLORA = {"adapter": "lora"}, {"adapter": "lora", "quantize": "nf4"}

CONFIGURATIONS: tuple[Configuration, ...] = (
    line("resnet50"),
    line("resnet50", **_MIXED),
    line("resnet50", scale=2, optimizer="sgd", momentum=0.9, **_SCALED),
    line("resnet50", **_ALL, **_TRUE),
    line("resnet50", microbatch_size=2),
    line("resnet50", offload_activations="all"),
    line("resnet50", inplace=True),
    line("resnet50", optimizer_impl="foreach"),
    line("resnet50", optimizer_impl="for-loop", optimizer="sgd"),
    line("regnet_y_400mf"),
    line("regnet_y_400mf", inplace=True, **_SCALED),
    line("regnet_y_400mf", precision="bf16-mixed", checkpoint="every:2"),
    line("convnext_tiny"),
    line("convnext_tiny", checkpoint="selective", **_MIXED),
    line("convnext_tiny", stochastic_rounding=True, **_TRUE),
    line("convnext_tiny", step_in_backward=True, **_ALL),
    line("convnext_tiny", optimizer="adamw8bit", **_TRUE),
    line("efficientnet_b0"),
    line("efficientnet_b0", **_SCALED),
    line("efficientnet_b0", scale=2, **_MIXED),
    line("efficientnet_b0", checkpoint="every:2"),
    line("efficientnet_b0", optimizer="sgd", optimizer_impl="for-loop"),
    line("densenet121"),
    line("densenet121", **_MIXED),
    line("densenet121", optimizer="adafactor"),
    line("mobilenetv3"),
    line("mobilenetv3", **_TRUE),
    line("lraspp"),
    line("lraspp", **_MIXED),
    line("vit_b_16"),
    line("vit_b_16", evaluate=False),
    line("vit_b_16", precision="tf32"),
    line("vit_b_16", **_SCALED),
    line("vit_b_16", **_MIXED),
    line("vit_b_16", scale=4, **_MIXED),
    line("vit_b_16", **_TRUE),
    line("vit_b_16", precision="16-true", optimizer="sgd"),
    line("vit_b_16", **_ALL),
    line("vit_b_16", checkpoint="blocks:2"),
    line("vit_b_16", checkpoint="selective", **_MIXED),
    line("vit_b_16", offload_activations="all"),
    line("vit_b_16", **_AWAY, **_MIXED),
    line("vit_b_16", microbatch_size=4),
    line("vit_b_16", microbatch_size=4, accumulate_dtype="fp32", **_TRUE),
    line("vit_b_16", microbatch_size=2, accumulate_dtype="fp32", **_TRUE),
    line("vit_b_16", optimizer_impl="foreach"),
    line("vit_b_16", optimizer_impl="for-loop"),
    line("vit_b_16", optimizer_impl="fused", **_TRUE),
    line("vit_b_16", optimizer="sgd"),
    line("vit_b_16", optimizer="sgd", momentum=0.9, optimizer_impl="foreach"),
    line("vit_b_16", optimizer="adam", clip_norm=1.0),
    line("vit_b_16", step_in_backward=True),
    line("vit_b_16", offload_optimizer=True),
    line("vit_b_16", step_in_backward=True, offload_optimizer=True, **_TRUE),
    line("vit_b_16", attention="eager"),
    line("vit_b_16", attention="flash", **_TRUE),
    line("vit_b_16", freeze="encoder.*", **_MIXED),
    line("vit_b_16", optimizer="adamw8bit"),
    line("vit_b_16", optimizer="adamw4bit", **_MIXED),
    line("vit_b_16", optimizer="adamwfp8", **_TRUE),
    line("vit_b_16", optimizer="paged-adamw8bit"),
    line("vit_b_16", optimizer="muon"),
    line("vit_b_16", **_LORA),
    line("vit_b_16", adapter="dora", **_MIXED),
    line("vit_b_16", **_QLORA, **_TRUE),
    line("vit_l_16", **_ALL, **_MIXED),
    line("vit_l_16", optimizer="sgd", step_in_backward=True, **_ALL, **_TRUE),
    line("vit_l_16", scale=2, microbatch_size=8, **_TRUE),
    line("vit_l_16", init="device", **_TRUE),
    line("vit_l_16", checkpoint="every:3", optimizer="adafactor", **_MIXED),
    line("deit_small"),
    line("deit_small", **_MIXED),
    line("deit_small", **_ALL),
    line("deit_small", attention="eager", **_SCALED),
    line("swin_t"),
    line("swin_t", **_MIXED),
    line("swin_t", **_ALL),
    line("swin_t", optimizer="sgd", momentum=0.9, **_SCALED),
    line("swin_t", offload_activations="all"),
    line("swin_v2_t"),
    line("swin_v2_t", **_TRUE),
    line("bert_base"),
    line("bert_base", **_SCALED),
    line("bert_base", scale=2, **_MIXED),
    line("bert_base", **_ALL, **_MIXED),
    line("bert_base", microbatch_size=4),
    line("bert_base", optimizer="adafactor"),
    line("bert_base", optimizer="adamw8bit"),
    line("bert_base", attention="eager"),
    line("bert_base", offload_activations="all"),
    line("bert_base", **_LORA),
    line("bert_base", **_QLORA),
    line("bert_large", microbatch_size=4, **_ALL, **_SCALED),
    line("bert_large", evaluate=False),
    line("bert_large", optimizer="adafactor", **_TRUE),
    line("distilbert"),
    line("distilbert", optimizer="sgd", **_ALL, **_TRUE),
    line("deberta"),
    line("deberta", **_MIXED),
    line("gpt2"),
    line("gpt2", **_MIXED),
    line("gpt2", microbatch_size=4, **_SCALED),
    line("gpt2", **_ALL),
    line("gpt2", checkpoint="selective"),
    line("gpt2", loss_impl="chunked"),
    line("gpt2", optimizer_impl="foreach", clip_norm=1.0),
    line("gpt2", offload_optimizer=True, **_TRUE),
    line("gpt2", **_LORA),
    line("llama_1b"),
    line("llama_1b", **_TRUE),
    line("llama_1b", **_MIXED),
    line("llama_1b", **_ALL, **_TRUE),
    line("llama_1b", step_in_backward=True, **_ALL, **_TRUE),
    line("llama_1b", optimizer="adamw8bit", **_ALL, **_TRUE),
    line("llama_1b", optimizer="adamw4bit", **_TRUE),
    line("llama_1b", **_AWAY, **_TRUE),
    line("llama_1b", microbatch_size=4, optimizer="adafactor", **_TRUE),
    line("llama_1b", loss_impl="chunked", **_TRUE),
    line("llama_1b", loss_impl="fused", **_TRUE),
    line("llama_1b", **_LORA, **_TRUE),
    line("llama_1b", adapter="rslora", adapter_rank=16, **_ALL, **_TRUE),
    line("llama_1b", adapter="dora", **_TRUE),
    line("llama_1b", **_QLORA, **_TRUE),
    line("llama_1b", double_quantize=True, **_QLORA, **_ALL, **_TRUE),
    line("llama_1b", adapter="lora", quantize="int8", **_TRUE),
    line("qwen3_0.6b", **_TRUE),
    line("qwen3_0.6b", loss_impl="chunked", **_TRUE),
    line("qwen3_0.6b", **_ALL, **_MIXED),
    line("qwen3_0.6b", optimizer="muon", **_TRUE),
    line("mixtral", **_TRUE),
    line("mixtral", **_ALL, **_MIXED),
    line("t5_small"),
    line("t5_small", **_MIXED),
    line("t5_small", **_ALL, **_TRUE),
    line("lstm"),
    line("lstm", optimizer_impl="foreach", **_MIXED),
)
"""All configurations."""

BY_NAME = {configuration.name: configuration for configuration in CONFIGURATIONS}
_ONLY_ON_CARDS = {
    ("precision", "tf32"): "tf32 changes nothing on a CPU",
    ("loss_impl", "fused"): "the fused loss is a kernel for cards",
}


def cases_named(names: Sequence[str], place: Place, left_out: str = "") -> list[Case]:
    """Returns configurations as cases of a part that looks closer at some of them.

    Args:
        names: Their names, in order.
        place: Where they are measured.
        left_out: Why they are not measured there; empty when they are.
    """
    return [
        Case(
            name=name,
            settings={"samples": BY_NAME[name].samples(place.kind), "recipe": BY_NAME[name].recipe},
            packages=BY_NAME[name].packages,
            left_out=left_out,
        )
        for name in names
    ]


def cases(place: Place) -> list[Case]:
    """Returns the configurations as cases, so ordered that any beginning of the list is spread over all of them.

    Args:
        place: Where they are measured.
    """
    found = []
    for configuration in CONFIGURATIONS:
        reasons = [
            reason for (field, value), reason in _ONLY_ON_CARDS.items() if configuration.recipe.get(field) == value
        ]
        subject = SUBJECTS[configuration.subject]
        settings = {
            "model": configuration.subject,
            "family": subject.family,
            "samples": configuration.samples(place.kind),
            "recipe": configuration.recipe,
            "training": configuration.settings,
            "evaluate": configuration.evaluate,
            "by": "prepare" if configuration.train_words(place.kind) is None else "snugfit train",
        }
        found.append(
            Case(
                name=configuration.name,
                settings=settings,
                half=half_of(configuration.name),
                packages=configuration.packages,
                left_out=reasons[0] if reasons and place.kind == "cpu" else "",
            )
        )
    return spread(found, lambda case: BY_NAME[case.name].features)
