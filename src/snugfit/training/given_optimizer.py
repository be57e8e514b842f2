"""An optimizer instance that the caller made of the model's parameters.

It is used as it is wherever a recipe lets it: its groups, its settings, its state. A recipe that updates one parameter at
a time, or holds the state in fewer bits, builds optimizers of the same settings from its groups, and the instance stays
what schedulers and people write to (`optimizer_handle.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor, nn
from torch.optim import Optimizer

from snugfit.errors import InputError, listed, warn
from snugfit.recipe import Recipe
from snugfit.training.optimizers import OF_TORCH
from snugfit.workload import CUSTOM_OPTIMIZER, STORED_OPTIMIZERS

if TYPE_CHECKING:
    from snugfit.techniques.shard.reducer import Reducer


def name_of(optimizer: Any) -> str:
    """Returns the workload's word for an optimizer: its name, or the word for one of the caller's own."""
    if isinstance(optimizer, str):
        return optimizer
    if isinstance(optimizer, Optimizer):
        own = vars(optimizer).get("step")
        if own is not None and not hasattr(own, "_wrapped_by_lr_sched"):  # replaced, and not by a schedule of torch's
            return CUSTOM_OPTIMIZER
        return next((name for name, cls in OF_TORCH.items() if cls is type(optimizer)), CUSTOM_OPTIMIZER)
    if callable(optimizer):
        return CUSTOM_OPTIMIZER
    raise InputError(
        f"optimizer is a {type(optimizer).__name__}; give a name or a function from parameters to an optimizer, "
        "or an optimizer of the model's parameters."
    )


class GivenOptimizer:
    """The caller's optimizer: noted before the model is changed, and put over the changed model's parameters."""

    def __init__(self, optimizer: Any, named: Mapping[str, nn.Parameter], *, by_function: bool = False) -> None:
        """Notes which parameters of the model it has; `InputError` where it has none of them.

        `named`: the parameters of the model, before anything is changed on it, or those that the function was given.
        """
        if not isinstance(optimizer, Optimizer):
            raise InputError(
                f"optimizer returned a {type(optimizer).__name__}; it must return a torch.optim.Optimizer."
            )
        self.optimizer = optimizer
        self._by_function = by_function
        self.name = name_of(optimizer)
        self._take_names(named)
        if not any(name is not None for group in self._names for name in group):
            raise InputError(
                f"the {type(optimizer).__name__} given has none of the model's parameters; build it of "
                "model.parameters(), after anything that replaces parameters."
            )

    def _take_names(self, named: Mapping[str, nn.Parameter]) -> None:
        names = {id(weight): name for name, weight in named.items()}
        groups = self.optimizer.param_groups
        self._names = [[names.get(id(weight)) for weight in group["params"]] for group in groups]

    def follow(self, model: nn.Module, before: set[str], reducer: Reducer | None = None) -> None:
        """Gives the instance the changed model's parameters, and moves its state to them.

        Done once when the model was cast and moved, and once more after techniques have given parameters other names.

        `before`: names of all parameters before it was changed; new ones that are trained join the first group.
        `reducer`: knows what this process holds of parameters, and has state cut likewise; None: this one is alone.
        """
        current = dict(model.named_parameters(remove_duplicate=False))
        there = {id(weight) for weight in current.values()}
        groups, state = self.optimizer.param_groups, self.optimizer.state
        for number, (group, names) in enumerate(zip(groups, self._names, strict=True)):
            kept = []
            for at, (name, weight) in enumerate(zip(names, group["params"], strict=True)):
                # a weight that an adapter stands around has another name, and may be unfrozen
                now = whole = weight if name is None or id(weight) in there else current.get(name)
                if whole is not None and reducer is not None:
                    if name is None:  # the model's come with it
                        reducer.ranks.from_first(whole)
                    now = reducer.share_of(whole, name or _place_of(number, at))
                if now is not weight and weight in state:
                    old = state.pop(weight)
                    if now is not None and whole is not None:
                        state[now] = old if reducer is None else _cut(old, weight, whole)
                if now is not None:
                    kept.append(now)
            group["params"] = kept
        for weight in list(state):
            state[weight] = {name: _placed(value, weight, name) for name, value in state[weight].items()}
        inside = {id(weight) for group in groups for weight in group["params"]}
        new = [(name, one) for name, one in current.items() if name not in before and one.requires_grad]
        shares = [one if reducer is None else reducer.share_of(one, name) for name, one in new]
        added = [weight for weight in shares if id(weight) not in inside]
        self._take_names(dict(model.named_parameters()))
        if added:
            groups[0]["params"].extend(dict.fromkeys(added))
            warn(
                f"the recipe trains {len(added)} parameters that the {type(self.optimizer).__name__} given does not know; "
                "they join its first group."
            )

    def check_unfrozen(self, unfrozen: Mapping[str, nn.Parameter]) -> None:
        """Raises `InputError` for unfrozen parameters that a function could not know when it made the optimizer."""
        inside = {id(weight) for group in self.optimizer.param_groups for weight in group["params"]}
        left_out = [name for name, weight in unfrozen.items() if id(weight) not in inside]
        if not left_out:
            return
        advice = (
            f"{listed(left_out)} requires a gradient now, and no group of the {type(self.optimizer).__name__} has it. "
            "trainer.optimizer.add_param_group({'params': [...]}) trains it from here on"
        )
        if self._by_function:
            raise InputError(
                f"{advice}, and so does optimizer=lambda parameters: ..., called by snugfit.prepare when nothing is frozen "
                "yet. Or freeze it again: requires_grad_(False)."
            )
        warn(f"{advice}; without that it stays as it is, as it would in a loop of your own.")

    def groups(self, recipe: Recipe) -> list[dict[str, Any]]:
        """Returns parameter groups for the optimizer that a recipe builds instead; `InputError` if it can't take them."""
        groups = [
            {**group, "params": [weight for weight in group["params"] if weight.requires_grad]}
            for group in self.optimizer.param_groups
        ]
        groups = [group for group in groups if group["params"]]
        assert recipe.optimizer is not None
        for option in ("amsgrad", "maximize"):
            if any(group.get(option) for group in groups):
                raise InputError(
                    f"the {type(self.optimizer).__name__} given has {option}, which the recipe's optimizer "
                    f"{recipe.optimizer!r} has not. Leave one of the two out."
                )
        if self.optimizer.state:
            raise InputError(
                f"the {type(self.optimizer).__name__} given has state of {len(self.optimizer.state)} parameters, which the "
                f"recipe's optimizer {recipe.optimizer!r} cannot take over. Give it without state, or leave the recipe's "
                "optimizer out."
            )
        algorithm = STORED_OPTIMIZERS.get(recipe.optimizer, recipe.optimizer)
        names = ("lr", "weight_decay", "betas", "eps") if algorithm in ("adam", "adamw") else ("lr", "weight_decay")
        return [
            {**{name: group[name] for name in names if name in group}, "params": group["params"]} for group in groups
        ]

    def tell(self, recipe: Recipe) -> None:
        """Says that a recipe updates by another optimizer than the instance."""
        warn(
            f"optimizer updates by {recipe.optimizer} in place of the {type(self.optimizer).__name__} given. It stays "
            "yours to read and set learning rates, for schedulers and for its state_dict; its `state` is empty."
        )


def _place_of(group: int, at: int) -> str:
    return f"optimizer.param_groups[{group}]['params'][{at}]"


def _cut(state: dict[str, Any], before: Tensor, layout: Tensor) -> dict[str, Any]:
    """This process's share of a parameter's state, cut as the parameter is cut."""
    from snugfit.training.shares import share_of_whole  # loads torch's sharding, which one process never needs

    return {
        name: share_of_whole(value, layout) if isinstance(value, Tensor) and value.shape == before.shape else value
        for name, value in state.items()
    }


def _placed(value: Any, weight: Tensor, name: str) -> Any:
    """State moved to the device of its parameter, as `load_state_dict` would."""
    if not isinstance(value, Tensor) or not value.dim() or name == "step":
        return value
    return value.to(weight.device, weight.dtype if value.is_floating_point() else value.dtype)
