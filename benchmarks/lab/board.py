"""Board: a small file in memory that all workers of a cell map, so that starting and stopping cost no network.

All namespaces of the lab share one machine and one clock; the board uses that where a real cluster could not, for
things that a real run would not do either (beginning at one instant, ending after a number of steps of all together).
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

NAME = "board"


class Board:
    """Counters of one cell: who is ready, everybody's steps, and whether the run is over."""

    def __init__(self, folder: Path, num_workers: int, *, create: bool = False) -> None:
        path, shape = folder / NAME, (2 * num_workers + 1,)
        self._cells = np.memmap(path, dtype=np.int64, mode="w+" if create else "r+", shape=shape)
        self._count = num_workers

    def ready(self, rank: int, seconds: float) -> bool:
        """Say that this worker is ready and wait for the others; False if they do not come in time."""
        self._cells[rank] = 1
        end = time.monotonic() + seconds
        while int(self._cells[: self._count].sum()) < self._count:
            if self.over or time.monotonic() > end:
                return False
            time.sleep(0.002)
        return True

    def stepped(self, rank: int, steps: int) -> None:
        self._cells[self._count + rank] = steps

    @property
    def all_steps(self) -> int:
        """Steps of all workers together."""
        return int(self._cells[self._count : -1].sum())

    @property
    def over(self) -> bool:
        return bool(self._cells[-1])

    def end(self) -> None:
        """End the run for all."""
        self._cells[-1] = 1
