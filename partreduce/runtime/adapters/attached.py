"""attach: a schedule on the user's own optimizer, for training loops that keep the optimizer they made."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from partreduce.runtime.guard.wrapping import FOLLOWS
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.topo.schedule import Schedule

VERDICTS = ("found_inf", "grad_scale")
"""What a GradScaler leaves at the optimizer whose step it calls."""


def attach(
    optimizer: torch.optim.Optimizer,
    model: torch.nn.Module,
    schedule: Schedule | str | Path,
    **options: Any,  # noqa: ANN401 - of DistributedOptimizer
) -> DistributedOptimizer:
    """Make `optimizer.step()` itself follow a schedule of any kind, for frameworks that keep the optimizer.

        attached = partreduce.attach(optimizer, model, "schedule.json")
        trainer = SomebodysTrainer(model, optimizer)   # calls optimizer.step(), with a closure or a GradScaler or not
        trainer.train()
        attached.finish()

    Learning-rate schedulers and step hooks stay with the optimizer; a hook runs once for each of its own steps.
    `optimizer.state_dict()` stays as it was. The result's own adds the step in the schedule and the gradients still to
    be applied; save and load that one.

    Args:
        optimizer: trains `model`. (Torch's step hooks would not do: they can neither skip a step nor drain a pipeline.)
        model: see `DistributedOptimizer`.
        schedule: see there.
        options: see there.

    Returns:
        The DistributedOptimizer that does the work: `mean_model()`, `finish()` and the rest are its. Its own `step()`
        and the optimizer's are the same.

    Raises:
        InputError: an optimizer that follows a schedule already; and as `DistributedOptimizer`.
    """
    attached = DistributedOptimizer(optimizer, model, schedule, **options)
    applier, plain = attached.run.applier, optimizer.step

    @functools.wraps(plain)
    def step(owner: torch.optim.Optimizer, closure: Callable[[], Any] | None = None) -> Any:  # noqa: ANN401 - torch's
        if applier.is_stepping:
            return plain() if closure is None else plain(closure)
        verdict = {name: vars(owner).pop(name) for name in VERDICTS if name in vars(owner)}
        vars(attached).update(verdict)
        try:
            return attached.step(closure)
        finally:
            for name in verdict:
                vars(attached).pop(name, None)
            vars(owner).update(verdict)  # the GradScaler takes it away

    setattr(step, FOLLOWS, True)
    # An optimizer's hooks cannot leave its step out, nor take one more, so its step is replaced, as schedulers do.
    optimizer.step = types.MethodType(step, optimizer)  # type: ignore[method-assign]
    optimizer._step_supports_amp_scaling = True  # type: ignore[attr-defined]  # noqa: SLF001 - as DistributedOptimizer says
    return attached
