"""One table of which a worker's step touches exactly so many rows: for the share of touched rows from 0.2 to 100 %."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from benchmarks.papers.tables.models import Batch, WithTables

ROWS, COLUMNS = 16_000, 32
"""2 MB, so that also the whole of it crosses the lab's links in a second."""
SHARES = (0.002, 0.008, 0.03, 0.1, 0.3, 1.0)
FIRST = 20
"""A row's weight is 1 / (its place + this): as steep as words are behind the first few."""


class SweepModel(WithTables):
    """A table and a little network."""

    def __init__(self, *, sparse: bool, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.table = nn.Embedding(ROWS, COLUMNS, sparse=sparse)
        self.inner = nn.Sequential(nn.Linear(COLUMNS, 256), nn.Tanh(), nn.Linear(256, 1))

    def touched(self, batch: Batch) -> dict[str, torch.Tensor]:
        """The batch itself, which has no row twice."""
        return {"table.weight": batch.inputs}

    def forward(self, batch: Batch) -> torch.Tensor:
        """A loss; what is learnt does not matter."""
        loss: torch.Tensor = self.inner(self.table(batch.inputs).mean(0)).square().sum()
        return loss


class SweepData:
    """Batches of exactly so many distinct rows, frequent ones likelier."""

    def __init__(self, share: float) -> None:
        self.count = max(1, round(share * ROWS))
        self._weights = -np.log(np.arange(ROWS) + FIRST)  # (rows,)

    def batch(self, seed: int, step: int, worker: int) -> Batch:
        """Without repetition: the largest of the weights' logarithms with Gumbel noise."""
        draw = np.random.default_rng((seed, step, worker))
        keys = self._weights + draw.gumbel(size=ROWS)
        rows = np.sort(np.argpartition(-keys, self.count - 1)[: self.count])
        inputs = torch.from_numpy(rows.astype(np.int64))
        return Batch(inputs, torch.zeros(self.count), torch.empty(0, dtype=torch.long))
