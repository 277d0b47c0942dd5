"""Real workers with an int8 codec, one of which is killed at the beginning of a stage of a sum.

`python -m helpers.coded_scenarios` reads requests and answers them as `helpers.scenarios` does.
"""

import os
import signal

import torch

from helpers.scenarios import everyone, main, rank, report, reporting, weights, wrapped
from partreduce import PartreduceError
from partreduce.runtime.transport.multistage_allreduce import CodedStages
from partreduce.strategies import AllReduceAlgorithm, Codec, Transport

STAGES = {AllReduceAlgorithm.RING: 4, AllReduceAlgorithm.HIERARCHICAL: 7}
"""How many calls of the methods below make up one sum."""
KILLED_IN = 2
"""The step during whose sum worker 3 is killed."""


def killed_in_stage(algorithm, stage):
    """Kill worker 3 when the given stage of its third sum begins; the other workers must report it."""
    calls = 0

    def count_calls(method):
        def call(self, *arguments):
            nonlocal calls
            if calls == KILLED_IN * STAGES[algorithm] + stage and rank() == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            calls += 1
            return method(self, *arguments)

        return call

    for name in ("scatter", "total", "own_code", "gather"):
        setattr(CodedStages, name, count_calls(getattr(CodedStages, name)))
    model = torch.nn.Linear(100, 50, bias=False)
    torch.nn.init.zeros_(model.weight)
    transport = Transport(algorithm=algorithm, codec=Codec.INT8)
    plan = everyone(num_nodes=1 if algorithm is AllReduceAlgorithm.RING else 2, transport=transport)
    optimizer = wrapped(model, plan, lr=1.0)

    def loop():
        for _ in range(KILLED_IN + 2):  # who had all it needs from worker 3 learns of its death one step later
            model.weight.grad = torch.ones_like(model.weight)
            try:
                optimizer.step()
            except PartreduceError:
                report(values=sorted(set(weights(model).tolist())), steps=optimizer.steps)
                raise

    reporting(loop)


SCENARIOS = {
    f"killed in {algorithm} {stage}": (4, lambda algorithm=algorithm, stage=stage: killed_in_stage(algorithm, stage))
    for algorithm, count in STAGES.items()
    for stage in range(count)
}

if __name__ == "__main__":
    main(SCENARIOS)
