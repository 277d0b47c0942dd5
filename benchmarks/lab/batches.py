"""Batches: which samples a worker takes in each step, and how long they take to compute."""

from __future__ import annotations

import torch

from benchmarks.lab.docstrings import longest
from benchmarks.lab.job import Job
from benchmarks.lab.tasks import Samples, shard


class Batches:
    """One worker's batches, drawn from its shard.

    Of docstrings a batch is a run in the order of lengths, and a step takes as long as its longest one has words, over
    the mean of all runs.
    """

    def __init__(self, job: Job, rank: int, samples: Samples) -> None:
        self._size, self._samples, self._by_length = job.batch, samples, job.task == "docstrings"
        self._places = shard(job, rank, samples.labels)
        self._generator = torch.Generator().manual_seed(1000 * job.seed + rank)
        if self._by_length:
            words = (samples.inputs[self._places] > 0).sum(1)
            order = torch.argsort(words, stable=True)
            self._places = self._places[order]
            self._mean = float(words[order][self._size - 1 :].float().mean())

    def draw(self) -> tuple[torch.Tensor, float]:
        """Places of the next batch, shape (batch,), and its share of a mean step's seconds."""
        if not self._by_length:
            return self._places[torch.randint(len(self._places), (self._size,), generator=self._generator)], 1.0
        first = int(torch.randint(len(self._places) - self._size + 1, (), generator=self._generator))
        batch = self._places[first : first + self._size]
        return batch, longest(self._samples.inputs[batch]) / self._mean
