"""Predict an optimizer's state for a parameter (momentum, second moments) before its first step.

With `optimizer_state="average"` it rides along with the parameters, so all workers have to know beforehand what will
be there: what was missed here would stay each worker's own, and no worker would be told.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch

from partreduce.topo.errors import InputError


def state_keys(optimizer: torch.optim.Optimizer, group: Mapping[str, Any] | None = None) -> list[str]:
    """The per-parameter tensors that an optimizer keeps, found by one step of a copy of it on its own parameter.

    Args:
        optimizer: the optimizer.
        group: one of its parameter groups, whose settings may differ from the defaults (`momentum`, `amsgrad`);
            without it what a parameter gets that is in none.
    """
    device = optimizer.param_groups[0]["params"][0].device  # some settings, such as `capturable`, need a GPU
    probe = torch.nn.Parameter(torch.zeros(2, 3, device=device))
    probe.grad = torch.zeros_like(probe)
    settings = dict(optimizer.defaults) if group is None else {**optimizer.defaults, **group}
    try:
        known = inspect.signature(type(optimizer)).parameters
        copy = type(optimizer)([probe], **{k: v for k, v in settings.items() if k in known and k != "params"})
        copy.step()
    except Exception as error:  # noqa: BLE001 - any constructor's refusal means the same to the user
        raise InputError(
            f"optimizer_state='average': the state of {type(optimizer).__name__} cannot be foreseen ({error}); "
            "use optimizer_state='local'"
        ) from None
    tensors = {key: value for key, value in copy.state[probe].items() if isinstance(value, torch.Tensor)}
    shapeless = sorted(key for key, value in tensors.items() if value.numel() > 1 and value.shape != probe.shape)
    if shapeless:
        raise InputError(
            f"optimizer_state='average': {type(optimizer).__name__} keeps {', '.join(shapeless)} in other shapes than "
            "its parameters', so it cannot be averaged with them; use optimizer_state='local'"
        )
    return sorted(key for key, value in tensors.items() if value.shape == probe.shape)
