"""What models of transformers are trained for: one row for each of its auto classes that knows a loss.

No model is known by its name here. A class that a config names is looked up in the tables behind transformers' own auto
classes; a config that names none is taken for the first task that its kind has a class for, in the order of the rows: what
a kind was made for (translation, contrastive pairs, filling in words) stands before the heads that almost every kind has.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator
from typing import Any, Literal

CAUSAL_LM, TEXT_CLASSIFICATION = "causal-lm", "text-classification"
IMAGE_CLASSIFICATION = "image-classification"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class HubTask:
    """A task, the class of transformers that is built for it, and the labels that its models take."""

    name: str
    """How the task is asked for."""

    auto_class: str
    """Name of the auto class that builds its models."""

    mapping: str
    """Name of the table from kinds of config to classes, in transformers' `modeling_auto`."""

    labels: Literal["class", "tokens", "summary", "span", "pixels", "boxes", "pairs"]
    """`class`: one number a sample; `tokens`: one for each token of the input; `summary`: tokens of a text of its own;
    `span`: where an answer starts and ends; `pixels`: one for each pixel; `boxes`: objects in an image; `pairs`: none, the
    samples of a batch are told apart from each other."""

    classes: bool = False
    """Whether its head tells classes apart, so that their number is an option."""


HUB_TASKS = {
    task.name: task
    for task in (
        HubTask(
            name="seq2seq-lm",
            auto_class="AutoModelForSeq2SeqLM",
            mapping="MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
            labels="summary",
        ),
        HubTask(
            name="speech-to-text",
            auto_class="AutoModelForSpeechSeq2Seq",
            mapping="MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
            labels="summary",
        ),
        HubTask(
            name="contrastive",
            auto_class="AutoModelForZeroShotImageClassification",
            mapping="MODEL_FOR_ZERO_SHOT_IMAGE_CLASSIFICATION_MAPPING_NAMES",
            labels="pairs",
        ),
        HubTask(
            name="image-text-to-text",
            auto_class="AutoModelForImageTextToText",
            mapping="MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
            labels="tokens",
        ),
        HubTask(
            name="masked-lm",
            auto_class="AutoModelForMaskedLM",
            mapping="MODEL_FOR_MASKED_LM_MAPPING_NAMES",
            labels="tokens",
        ),
        HubTask(
            name=CAUSAL_LM,
            auto_class="AutoModelForCausalLM",
            mapping="MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
            labels="tokens",
        ),
        HubTask(
            name=IMAGE_CLASSIFICATION,
            auto_class="AutoModelForImageClassification",
            mapping="MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES",
            labels="class",
            classes=True,
        ),
        HubTask(
            name="object-detection",
            auto_class="AutoModelForObjectDetection",
            mapping="MODEL_FOR_OBJECT_DETECTION_MAPPING_NAMES",
            labels="boxes",
            classes=True,
        ),
        HubTask(
            name="semantic-segmentation",
            auto_class="AutoModelForSemanticSegmentation",
            mapping="MODEL_FOR_SEMANTIC_SEGMENTATION_MAPPING_NAMES",
            labels="pixels",
            classes=True,
        ),
        HubTask(
            name="video-classification",
            auto_class="AutoModelForVideoClassification",
            mapping="MODEL_FOR_VIDEO_CLASSIFICATION_MAPPING_NAMES",
            labels="class",
            classes=True,
        ),
        HubTask(
            name="ctc",
            auto_class="AutoModelForCTC",
            mapping="MODEL_FOR_CTC_MAPPING_NAMES",
            labels="summary",
        ),
        HubTask(
            name="audio-classification",
            auto_class="AutoModelForAudioClassification",
            mapping="MODEL_FOR_AUDIO_CLASSIFICATION_MAPPING_NAMES",
            labels="class",
            classes=True,
        ),
        HubTask(
            name="token-classification",
            auto_class="AutoModelForTokenClassification",
            mapping="MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES",
            labels="tokens",
            classes=True,
        ),
        HubTask(
            name="question-answering",
            auto_class="AutoModelForQuestionAnswering",
            mapping="MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES",
            labels="span",
        ),
        HubTask(
            name=TEXT_CLASSIFICATION,
            auto_class="AutoModelForSequenceClassification",
            mapping="MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES",
            labels="class",
            classes=True,
        ),
    )
}
"""The tasks, in the order in which a kind of model is taken for one."""

LANGUAGE = ("seq2seq-lm", "masked-lm", CAUSAL_LM, "token-classification", "question-answering", TEXT_CLASSIFICATION)
"""Tasks whose batches are text alone."""


def tasks_of(config: Any, among: Collection[str] = tuple(HUB_TASKS)) -> list[str]:
    """Returns what a config's model can be trained for, the most natural first.

    Args:
        config: A config of transformers.
        among: Tasks that come into question.

    Returns:
        Names of tasks: first those of the classes that the config names, then those of its kind.
    """
    named = set(getattr(config, "architectures", None) or ())
    kind = config.model_type
    known = {name: names for name, task in HUB_TASKS.items() if (names := _classes(task).get(kind))}
    first = [name for name, names in known.items() if named & set(names)]
    rest = [name for name in known if name not in first]
    # Kinds that fill in words mostly have a class that goes from left to right too; which one is meant, the config says.
    last = "masked-lm" if getattr(config, "is_decoder", False) else CAUSAL_LM
    if "masked-lm" in known and last in rest:
        rest.remove(last)
        rest.append(last)
    return [name for name in first + rest if name in among]


def _classes(task: HubTask) -> dict[str, tuple[str, ...]]:
    """From kinds of config to names of classes, as transformers has them."""
    from transformers.models.auto import modeling_auto

    def items() -> Iterator[tuple[str, tuple[str, ...]]]:
        for kind, names in getattr(modeling_auto, task.mapping, {}).items():
            yield kind, names if isinstance(names, tuple) else (names,)

    return dict(items())
