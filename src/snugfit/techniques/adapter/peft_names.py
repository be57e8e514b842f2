"""What adapters are called in `adapter_config.json`, so that peft puts them where they were.

For some mixtures of experts peft reads the names of layers by the model's kind, since adapters of older versions of
transformers named each expert's layers: `gate_proj`, `up_proj` and `down_proj` of any layer, shared experts' and dense ones'
too, become the stacks of the experts. So such layers are named by their parameter (`target_parameters`), which peft takes
as it stands; the adapter's matrices and their names are the same. peft knows no DoRA there: such files are ours alone.
"""

from __future__ import annotations

import copy
from typing import Any

from torch import nn

_WEIGHT = ".weight"


def name_for_peft(config: Any, model: nn.Module) -> None:
    """Rewrites a `peft.LoraConfig` about to be saved, so that peft does not take layers for others of the same name."""
    names = config.target_modules
    if isinstance(names, str) or not names or config.use_dora:
        return
    kinds = {name.rpartition(".")[2] for name in names}
    taken = {kind for kind in kinds if _is_taken_for_experts(kind, config, model)}
    moved = sorted(name for name in names if name.rpartition(".")[2] in taken)
    if moved:
        config.target_modules = sorted(set(names) - set(moved))
        config.target_parameters = [*(config.target_parameters or ()), *(name + _WEIGHT for name in moved)]


def name_for_us(config: Any, model: nn.Module) -> None:
    """Undoes `name_for_peft` in a `peft.LoraConfig` that was read: layers go by their own names again."""
    layers = {name for name, module in model.named_modules() if isinstance(module, nn.Linear)}
    named = list(config.target_parameters or ())
    moved = [name.removesuffix(_WEIGHT) for name in named if name.removesuffix(_WEIGHT) in layers]
    if moved:
        config.target_modules = {*(config.target_modules or ()), *moved}
        config.target_parameters = [name for name in named if name.removesuffix(_WEIGHT) not in moved] or None


def _is_taken_for_experts(kind: str, config: Any, model: nn.Module) -> bool:
    from peft.utils.transformers_weight_conversion import convert_peft_config_for_transformers

    probe = copy.deepcopy(config)
    probe.target_modules = {kind}
    try:
        convert_peft_config_for_transformers(probe, model=model, conversions=None)
    except ValueError:  # it wants the other half of a stack named, too
        return True
    return kind not in probe.target_modules
