"""Caches of keys and values are off while a `Trainer` runs the model.

Models of transformers fill one whenever their config says `use_cache`, which is its default. They serve generation; a
training pass only pays for them, and under checkpointing the recomputation would append to the same cache a second time.
transformers' own Trainer switches the setting off for good (`TrainingArguments.use_cache`); here it is off during the pass
only, so the user's config says afterwards what it said before. A call that asks for a cache itself, as
`model(..., use_cache=True)` in a `forward` of the caller's, still gets one.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import nn

from snugfit.attributes import attributes_set


def caching_configs(model: nn.Module) -> list[Any]:
    """Returns all configs in a model that can ask for a cache; encoder, decoder and whole may each have one."""
    configs = (getattr(module, "config", None) for module in model.modules())
    return list({id(config): config for config in configs if isinstance(_use_cache(config), bool)}.values())


def without_caches(configs: list[Any]) -> AbstractContextManager[None]:
    """Returns a context in which `use_cache` of these configs is off; afterwards it is as it was."""
    return attributes_set([config for config in configs if _use_cache(config)], use_cache=False)


def _use_cache(config: Any) -> Any:
    return getattr(config, "use_cache", None)
