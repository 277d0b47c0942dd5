"""Compare the optimizers' hyperparameters, which must be equal on all workers if gradients are averaged."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch

Settings: TypeAlias = "tuple[tuple[object, ...], ...]"
"""Values of the hyperparameters in `SCHEDULED` for each parameter group; None for a missing value."""
SCHEDULED = ("lr", "momentum", "betas", "weight_decay")  # hyperparameters that schedulers and scripts change


def settings_of(optimizer: torch.optim.Optimizer) -> Settings:
    """Return the optimizer's hyperparameters by parameter group, with None for tensors on a device, to avoid a wait."""
    return tuple([tuple([_plain(group.get(name)) for name in SCHEDULED]) for group in optimizer.param_groups])


def difference(mine: Settings, theirs: Settings) -> tuple[str, object, object] | None:
    """Find the first hyperparameter that differs: (name, this worker's value, the other's); None if all are equal."""
    if len(mine) != len(theirs):
        return "number of parameter groups", len(mine), len(theirs)
    for index, (group, another) in enumerate(zip(mine, theirs, strict=True)):
        for name, value, differs in zip(SCHEDULED, group, another, strict=True):
            if value != differs:
                return f"{name} (group {index})", value, differs
    return None


def _plain(value: Any) -> object:  # noqa: ANN401 - whatever a script has put there
    if value is None or isinstance(value, int | float):
        return value
    if isinstance(value, torch.Tensor):
        return float(value) if value.numel() == 1 and value.device.type == "cpu" else None
    return tuple(map(_plain, value)) if isinstance(value, tuple | list) else None
