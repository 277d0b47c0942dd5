"""Runs in virtual time of every kind, with steady, slow and random workers, and predictions of the same."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from . import tool
from .records import summary
from .schedules import SCHEDULES

WORKERS = {
    "steady": {},
    "slow": {"slowdown": [[1, 5.0]]},
    "random": {"jitter": 0.3},
}
ROUNDS = 40
TOUCHED = {"table.weight": [0.01, 0.02, 0.03]}
"""Shares of the rows of the one table that a schedule names: of a worker's step, of a node's, of all."""


class Timelines:
    """A summary of every array of a timeline, seconds per step and shares, and `predict`."""

    def inputs(self) -> dict[str, Any]:
        return {
            f"{name}, {workers}": {"schedule": document, "workers": setting, "rounds": ROUNDS, "touched": TOUCHED}
            for name, document in SCHEDULES.items()
            for workers, setting in WORKERS.items()
        }

    def observe(self, given: dict[str, Any]) -> dict[str, Any]:
        setting = given["workers"]
        slow = tuple((worker, factor) for worker, factor in setting.get("slowdown", ()))
        place = tool.hardware(slowdown=slow, jitter=setting.get("jitter", 0.0))
        schedule = tool.parse(given["schedule"])
        outcome: dict[str, Any] = {}
        try:
            timeline = tool.simulate(schedule, place, given["rounds"], given["touched"])
            outcome["seconds"] = {
                "per_step": timeline.per_step(warm_up=given["rounds"] // 4),
                "makespan": timeline.makespan,
                "computing": timeline.computing().tolist(),
                "communicating": timeline.communicating().tolist(),
                "waiting": timeline.waiting().tolist(),
            }
            outcome["timeline"] = _arrays(timeline)
        except Exception as error:
            if not tool.is_own_error(error):
                raise
            outcome["timeline"] = tool.error_line(error)
        try:
            outcome["predicted"] = _plain(tool.predict(schedule, place, given["rounds"], given["touched"]))
        except Exception as error:
            if not tool.is_own_error(error):
                raise
            outcome["predicted"] = tool.error_line(error)
        return outcome


def _plain(value: Any) -> dict[str, Any]:  # noqa: ANN401 - a dataclass
    return {part.name: getattr(value, part.name) for part in fields(value)}


def _arrays(value: Any) -> dict[str, Any]:  # noqa: ANN401 - a dataclass of arrays, or of such
    """The fields of a timeline, those of what it has observed among them."""
    made: dict[str, Any] = {}
    for name, part in _plain(value).items():
        if isinstance(part, np.ndarray):
            made[name] = part.tolist() if part.size <= 16 else summary(part)
        elif hasattr(part, "__dataclass_fields__"):
            made[name] = _arrays(part)
        elif part is None or isinstance(part, bool | int | float | str):
            made[name] = part
        else:
            made[name] = summary(np.concatenate([np.ravel(np.asarray(one, dtype=float)) for one in part] or [[]]))
    return made
