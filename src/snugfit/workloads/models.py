"""Models by name: `torchvision:NAME`, `timm:NAME`, `hf:CONFIG`, or `path/file.py:function`.

The libraries are imported only when a model of theirs is asked for. Their own builders and their own download code are
used, so a model is what the library says it is.
"""

from __future__ import annotations

import ast
import difflib
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from snugfit.errors import InputError, did_you_mean
from snugfit.library_imports import needed
from snugfit.techniques.init.apply import build, draw_rest, give_memory, settle, without_weights
from snugfit.techniques.init.late import drawn_alone
from snugfit.workloads import hf, model_files
from snugfit.workloads.heads import replace_heads
from snugfit.workloads.stored_weights import StoredWeights
from snugfit.workloads.weights import await_weights, freeze_parameters, load_weights, map_weights

FORMS = "torchvision:NAME, timm:NAME, hf:DIRECTORY_OR_CONFIG_JSON, hf:KIND or path/file.py:function"
_NETWORK_LIBRARIES = ("urllib", "requests", "urllib3", "httpx", "httpcore", "huggingface_hub", "socket")


def build_model(
    spec: str,
    *,
    model_args: Mapping[str, Any] | None = None,
    num_classes: int | None = None,
    task: str | None = None,
    weights: str | None = None,
    freeze: Sequence[str] = (),
    init: str = "host",
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    processes: int = 1,
    number: int = 0,
    late: bool = False,
) -> torch.nn.Module:
    """Builds a model, with its weights, on its device and in its dtype, in training mode.

    What is cast to `dtype` on its way from a file is read tensor by tensor, so that the host never holds the model.

    `num_classes`: outputs of the head; `model_args` wins where it says another. None leaves it to the model.
    `weights`: a name that the library knows (DEFAULT is its best; for `hf:` what its directory holds), a `.safetensors`
    file, or None for random values.
    `processes`: how many will train it together, each of which gets the weights that the first one has.
    `late`: whether weights may stay where they are until `snugfit.prepare` asks for them, layer by layer.
    `task`: what a `hf:` model is built for; None: what its config says.
    `number`: which of them this is, from 0.
    Of several processes, all but the first may have parameters on meta, and under `meta` the first has those of the
    file where the file has them.
    `meta` the first has those of the file where the file has them.
    """
    device, first = torch.device(device), number == 0
    if processes > 1 and init != "device":  # what is shared out goes to the device unit by unit
        device = torch.device("cpu")
    arguments = dict(model_args or {})
    from_file = weights is not None and ("." in weights or "/" in weights) and not _is_library_name(spec, weights)
    if processes == 1 and (late or (dtype is not None and init == "host" and weights is not None)):
        model = _without_values(spec, arguments, num_classes, task, weights if from_file else None, weights is None)
        if model is not None:
            return _finished(model, freeze, device=device, dtype=dtype, late=late)
    if spec.startswith("hf:") and weights == "DEFAULT" and not first and init != "device":
        weights, init = None, "host"
    if spec.startswith("hf:") and weights == "DEFAULT":
        place, kind = (torch.device("cpu"), None) if init == "host" else (device, dtype)
        read = {"device": place, "dtype": kind or torch.float32}
        model = hf.maker(spec.partition(":")[2], arguments, num_classes, task, read)()
        return _finished(model, freeze, device=device, dtype=dtype)
    make = _maker(spec, arguments, num_classes, None if from_file else weights, task)
    if init == "meta" and not from_file:
        raise InputError(
            "init='meta' needs weights from a .safetensors file: a model that is built without memory has no values, "
            "so without a file they would be undefined. Give weights=FILE.safetensors, or use init='device' or "
            "init='host'."
        )
    stored = StoredWeights(weights) if from_file and weights is not None else None
    model = build(make, init=init, device=device, dtype=dtype, first=first)
    if not first and any(weight.is_meta for weight in model.parameters()):
        stored = None
    elif init == "meta" and processes > 1 and stored is not None:
        fresh = map_weights(model, stored, dtype)
        give_memory(model, device=device, dtype=dtype)
        draw_rest(model, fresh)
    elif init == "meta":
        give_memory(model, device=device, dtype=dtype)
        assert stored is not None
        draw_rest(model, load_weights(model, stored))
    elif stored is not None:
        load_weights(model, stored)
    model = _finished(model, freeze, device=device, dtype=dtype)
    if spec.startswith("hf:") and device.type == "meta":  # a skeleton: a simulation asks how its weights come
        hf.await_values(spec.partition(":")[2], model, without_values=True)
    return model


def _without_values(
    spec: str, arguments: dict[str, Any], num_classes: int | None, task: str | None, file: str | None, drawn: bool
) -> torch.nn.Module | None:
    """The model with awaited weights, from a file, its directory, or drawn; None where they cannot be awaited."""
    if file is None and not spec.startswith("hf:"):
        return None
    state = torch.get_rng_state()
    make = _maker(spec, arguments, num_classes, None, task)
    model = without_weights(make, drawn_alone) if drawn else without_weights(make)
    if model is not None and not any(buffer.is_meta for buffer in model.buffers()):
        if file is not None:
            found = await_weights(model, StoredWeights(file))
        else:
            found = hf.await_values(spec.partition(":")[2], model, drawn=drawn)
        if found:
            return model
    torch.set_rng_state(state)
    return None


def _finished(
    model: torch.nn.Module,
    freeze: Sequence[str],
    *,
    device: torch.device,
    dtype: torch.dtype | None,
    late: bool = False,
) -> torch.nn.Module:
    if not late:
        model = settle(model, device=device, dtype=dtype)
    freeze_parameters(model, freeze)
    return model.train()


def parse_model_args(given: Iterable[str]) -> dict[str, Any]:
    """Returns constructor arguments from texts such as `depth=12` or `norm=batch`.

    `given`: texts `key=value`; values are read as Python literals (true and false in any case), else as text.
    """
    arguments: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        key = key.strip().replace("-", "_")
        if not equals or not key.isidentifier():
            raise InputError(f"model argument {text!r} is not understood. Write key=value, for example num_classes=10.")
        if key in arguments:
            raise InputError(f"model argument {key!r} is given twice. Give it once.")
        arguments[key] = _literal(value.strip())
    return arguments


def _literal(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _maker(
    spec: str, arguments: dict[str, Any], num_classes: int | None, weights: str | None, task: str | None
) -> Callable[[], torch.nn.Module]:
    """Checks what can be checked without building, and returns a function that builds."""
    prefix, colon, name = spec.partition(":")
    wanted = arguments if num_classes is None else {"num_classes": num_classes, **arguments}
    if colon and prefix == "torchvision":
        return _torchvision_maker(name, wanted, weights)
    if colon and prefix == "timm":
        return _timm_maker(name, wanted, weights)
    if colon and prefix == "hf":
        if weights is not None:
            raise InputError(
                f"weights {weights!r}: give a .safetensors file, or DEFAULT for those in the model's own directory."
            )
        return hf.maker(name, arguments, num_classes, task)
    if ".py:" in spec or spec.endswith(".py"):
        if weights is not None:
            raise InputError(
                f"weights {weights!r}: a model function has no library of pretrained weights. Give a .safetensors file."
            )
        return partial(model_files.call, spec, model_files.load_function(spec), arguments, num_classes)
    near = difflib.get_close_matches(prefix, ("torchvision", "timm", "hf"), n=1) if colon else []
    hint = f"did you mean {near[0] + ':' + name!r}? " if near else ""
    if not colon and Path(spec).is_dir():
        hint = f"it is a folder: with a config.json of transformers it is 'hf:{spec}'. "
    elif not colon and spec.endswith((".sh", ".bash")):
        hint = "it is a shell's: give the Python file that it starts, with its arguments behind it. "
    elif not colon and spec.endswith(".ipynb"):
        hint = "a notebook is estimated and planned as a script (snugfit estimate NOTEBOOK); it is no model. "
    elif not colon and Path(spec).exists():
        hint = "it is a file, and no model. "
    scripts = " Estimates, plans and profiles take a training script as well: path/train.py."
    raise InputError(f"model {spec!r} is not understood; {hint}{'Write' if hint else 'write'} {FORMS}.{scripts}")


def _torchvision_maker(name: str, wanted: dict[str, Any], weights: str | None) -> Callable[[], torch.nn.Module]:
    models = needed("torchvision models need", "torchvision.models", install="snugfit[vision]")
    _check_name("torchvision", name, models.list_models(), "torchvision.models.list_models()")
    builder = models.get_model_builder(name)
    if "weights_backbone" in inspect.signature(builder).parameters:
        wanted.setdefault("weights_backbone", None)  # torchvision's default downloads one
    if weights is None:
        return partial(_call_builder, f"torchvision:{name}", builder, wanted)
    choices = models.get_model_weights(name)
    names = list(choices.__members__)
    if weights not in names:
        raise InputError(f"weights {weights!r} are unknown for torchvision:{name}; {did_you_mean(weights, names)}")
    chosen = choices[weights]
    old_classes = len(chosen.meta.get("categories") or ())
    classes = wanted.get("num_classes")
    replaced = bool(old_classes) and classes is not None and classes != old_classes
    if replaced:
        del wanted["num_classes"]  # the builder takes the number of its weights only; the head follows

    def make() -> torch.nn.Module:
        model = _call_builder(f"torchvision:{name}", builder, {**wanted, "weights": chosen}, weights=weights)
        if replaced and classes is not None:
            replace_heads(model, old_classes, classes, origin=f"{weights} of torchvision:{name}")
        return model

    return make


def _timm_maker(name: str, wanted: dict[str, Any], weights: str | None) -> Callable[[], torch.nn.Module]:
    timm = needed("timm models need", "timm", install="snugfit[vision]")
    architecture, _, name_tag = name.partition(".")
    _check_name("timm", architecture, timm.list_models(), "timm.list_models()")
    if weights is None:
        return partial(_call_builder, f"timm:{name}", partial(timm.create_model, name), wanted)
    tags = _timm_tags(architecture)
    if name_tag and weights not in ("DEFAULT", name_tag):
        raise InputError(f"weights {weights!r} contradict the tag in timm:{name}. Give one of them.")
    tag = name_tag if name_tag else "" if weights == "DEFAULT" else weights
    if not tags or (tag and tag not in tags):
        hint = did_you_mean(weights, ["DEFAULT", *tags]) if tags else "It has none; leave weights out."
        raise InputError(f"weights {weights!r} are unknown for timm:{architecture}; {hint}")
    wanted["pretrained"] = True
    tagged = f"{architecture}.{tag}" if tag else architecture
    return partial(_call_builder, f"timm:{name}", partial(timm.create_model, tagged), wanted, weights=weights)


def _timm_tags(architecture: str) -> list[str]:
    timm = needed("timm models need", "timm", install="snugfit[vision]")
    return [name.partition(".")[2] for name in timm.list_pretrained(f"{architecture}.*") if "." in name]


def _is_library_name(spec: str, weights: str) -> bool:
    """Whether a text with a dot in it is a library's name all the same (timm's tags may have dots)."""
    if spec.startswith("timm:") and not weights.endswith(".safetensors") and "/" not in weights:
        return weights in _timm_tags(spec.partition(":")[2].partition(".")[0])
    return False


def _call_builder(
    spec: str, builder: Callable[..., Any], arguments: Mapping[str, Any], *, weights: str | None = None
) -> torch.nn.Module:
    try:
        model = builder(**arguments)
    except Exception as error:
        reason = model_files.describe(error, None)
        if weights is not None and _is_about_network(error):
            raise InputError(
                f"weights {weights!r} of {spec} could not be fetched: {reason}. They are downloaded once and kept; "
                "connect to the network, or give a .safetensors file of this model."
            ) from error
        given = ", ".join(f"{key}={value!r}" for key, value in arguments.items()) or "no arguments"
        raise InputError(
            f"model {spec} could not be built with {given}: {reason.rstrip('.')}. Check the model arguments."
        ) from error
    assert isinstance(model, torch.nn.Module)
    return model


def _is_about_network(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, OSError) or type(error).__module__.partition(".")[0] in _NETWORK_LIBRARIES:
            return True
        error = error.__cause__ or error.__context__
    return False


def _check_name(library: str, name: str, known: Sequence[str], listing: str) -> None:
    if name in known:
        return
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(repr(f'{library}:{one}') for one in near)}? " if near else ""
    raise InputError(f"model '{library}:{name}' is unknown; {hint}{library} has {len(known)} models, see {listing}.")
