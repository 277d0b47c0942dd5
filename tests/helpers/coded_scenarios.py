"""Real workers whose sums travel in eight bits, one of which is killed at the beginning of a stage.

`python -m helpers.coded_scenarios` reads requests and answers them as `helpers.scenarios` does.
"""

from __future__ import annotations

import os
import signal

import torch

from helpers.scenarios import everyone, main, rank, report, reporting, weights
from partreduce.runtime.optimizer import DistributedOptimizer
from partreduce.runtime.transport.block_sums import BlockStages
from partreduce.topo.errors import PartreduceError
from partreduce.topo.strategies import Codec, Form, How

STAGES = {Form.RING: 4, Form.HIERARCHICAL: 7}
"""Calls of the methods below that make up one sum."""
KILLED_IN = 2
"""The step in whose sum worker 3 is killed."""


def killed_in_stage(form, stage) -> None:
    """Worker 3 is killed when the given stage of its third sum begins; the others have to say so."""
    calls = 0

    def counted(method):
        def call(self, *arguments):
            nonlocal calls
            if calls == KILLED_IN * STAGES[form] + stage and rank() == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1
            return method(self, *arguments)

        return call

    for name in ("scatter", "total", "own_code", "gather"):
        setattr(BlockStages, name, counted(getattr(BlockStages, name)))
    model = torch.nn.Linear(100, 50, bias=False)
    torch.nn.init.zeros_(model.weight)
    how = How(form=form, codec=Codec.INT8)
    plan = everyone(num_nodes=1 if form is Form.RING else 2, how=how)
    optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model, plan, timeout=60)

    def loop() -> None:
        for _ in range(KILLED_IN + 2):  # who had all it needs from worker 3 learns of its death one step later
            model.weight.grad = torch.ones_like(model.weight)
            try:
                optimizer.step()
            except PartreduceError:
                report(values=sorted(set(weights(model).tolist())), steps=optimizer.steps)
                raise

    reporting(loop)


SCENARIOS = {
    f"killed in {form} {stage}": (4, lambda form=form, stage=stage: killed_in_stage(form, stage))
    for form, count in STAGES.items()
    for stage in range(count)
}

if __name__ == "__main__":
    main(SCENARIOS)
