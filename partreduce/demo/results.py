"""What a plan's runs measured: loss curves of the mean model, time and steps to a target, bytes across nodes."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from partreduce.report.traces import bytes_across, is_training, operations
from partreduce.topo.errors import FileError
from partreduce.topo.schedule import Schedule

TRAIN_IMAGES = 1438
TEST_IMAGES = 359


@dataclass(frozen=True, slots=True)
class Result:
    """One schedule's runs. `steps`, `loss` and `accuracy` are those of the mean model at every evaluation.

    `seconds` [turns, evaluations] count training only, of the slowest worker; evaluations are left out. `bytes_across`
    is what left the nodes in all steps of a run if groups average by rings, counted from the operations that ran.
    """

    name: str
    steps: npt.NDArray[np.int64]
    seconds: npt.NDArray[np.float64]
    loss: npt.NDArray[np.float64]
    accuracy: npt.NDArray[np.float64]
    bytes_across: float

    def reached(self, target: float) -> tuple[int, npt.NDArray[np.float64]] | None:
        """Steps and seconds [turns] at the first evaluation with a loss of at most `target`; None if there is none."""
        hits = np.flatnonzero(self.loss <= target)
        return (int(self.steps[hits[0]]), self.seconds[:, hits[0]]) if len(hits) else None

    @property
    def bytes_per_step(self) -> float:
        return self.bytes_across / float(self.steps[-1])


def read_result(folders: list[Path], schedule: Schedule, name: str) -> Result:
    """Put the workers' files of all turns together; losses and bytes are those of the first.

    Raises:
        FileError: a file is missing or broken.
    """
    first, *others = [_read_turn(folder, schedule, name) for folder in folders]
    seconds = np.concatenate([first.seconds, *(other.seconds for other in others)])
    return replace(first, seconds=seconds)


def _read_turn(folder: Path, schedule: Schedule, name: str) -> Result:
    """One run's files."""
    try:
        parts = [json.loads(path.read_text()) for path in sorted(folder.glob("result-*.json"))]
        if len(parts) != schedule.num_workers:
            raise FileError(f"{folder}: holds results of {len(parts)} workers, not of {schedule.num_workers}")
        curves = [part["curve"] for part in parts]
        steps = np.array([point["step"] for point in curves[0]])
        column = {
            key: np.array([[p[key] for p in curve] for curve in curves]) for key in ("seconds", "loss_sum", "right")
        }
        node_of = schedule.cluster.node_of().tolist()
        across = sum(bytes_across(event, node_of) for event in operations(folder) if is_training(event))
    except (OSError, ValueError, KeyError) as error:
        raise FileError(f"{folder}: the results of the run cannot be read ({error})") from None
    return Result(
        name,
        steps,
        column["seconds"].max(axis=0)[np.newaxis],
        column["loss_sum"].sum(axis=0) / TRAIN_IMAGES,
        column["right"].sum(axis=0) / TEST_IMAGES,
        across,
    )
