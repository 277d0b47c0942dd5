"""Run fixed phases in virtual time: one round after another in max-plus arithmetic, for thousands of workers.

Every worker computes the steps of its round, arrives, waits for its group and takes part in the group's operation,
exactly in the order in which the real runtime does; only the clock is virtual. The equations, also for late rounds and
pipelines, are in `topo.timing.rounds`.
"""

from __future__ import annotations

import numpy as np

from partreduce.schedulers.simulator.case import Case
from partreduce.schedulers.simulator.timeline import Timeline
from partreduce.topo.timing.rounds import Rounds
from partreduce.topo.timing.stages import of_period, of_prologue
from partreduce.topo.timing.table_steps import TableRounds


def run_rounds(case: Case) -> Timeline:
    """The rounds of a schedule with fixed phases, its prologue first. O(num_rounds · n)."""
    schedule, num_rounds = case.schedule, case.num_rounds
    stages = of_period(schedule, case.hardware, model_bytes=case.model_bytes, algorithm=case.algorithm)
    first = None
    if schedule.prologue:
        first = of_prologue(schedule, case.hardware, model_bytes=case.model_bytes, algorithm=case.algorithm)
    sync, prologue = schedule.strategy.sync, schedule.prologue
    worker_steps, exchange = case.worker_steps(), case.exchange
    seconds = case.seconds() if exchange is None else case.seconds_of_steps()
    records = np.empty((5, num_rounds, schedule.num_workers))
    rounds = Rounds(sync, (schedule.num_workers,))
    meeting = None if exchange is None else TableRounds(rounds, exchange)
    waited = None if exchange is None else np.empty(records.shape[1:])
    operating = np.zeros(records.shape[1:]) if any(stage.segments or stage.turns for stage in stages) else None
    for round_ in range(num_rounds):
        index = (round_ - prologue) % len(stages)
        stage = first if first is not None and round_ < prologue else stages[index]
        if meeting is not None and waited is not None:
            records[:, round_], waited[round_] = meeting.next(stage, seconds[round_])
        else:
            records[:, round_] = rounds.next(stage, seconds[round_])
        if operating is not None:
            operating[round_] = stage.duration()
    awaited = np.full(num_rounds, -1)
    for round_ in range(num_rounds):
        if (due := sync.due(round_)) < num_rounds:
            awaited[due] = round_
    start, computed, begin, end, finish = records
    return Timeline(
        worker_steps,
        start,
        computed,
        begin,
        end,
        finish,
        is_delayed=schedule.strategy.is_delayed,
        awaited=awaited,
        drained=rounds.drained(),
        operating=operating,
        exchanging=None if exchange is None else np.full(records.shape[1:], exchange.seconds) * worker_steps,
        waited=waited,
    )
