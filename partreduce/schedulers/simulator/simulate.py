"""Simulate a schedule in virtual time (`partreduce.simulate`): round by round, or with its protocol.

With fixed phases one round follows another in max-plus arithmetic, for thousands of workers, in the order of the real
runtime; `topo.timing.stages` has the equations, also for late rounds and pipelines.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from partreduce.schedulers.simulator.asynchronous import run_groups, run_pairs
from partreduce.schedulers.simulator.case import Case
from partreduce.schedulers.simulator.gaps import run_gaps
from partreduce.schedulers.simulator.quorum import run_quorum
from partreduce.schedulers.simulator.servers import run_servers
from partreduce.schedulers.simulator.timeline import Timeline
from partreduce.topo.argument_types import check_arguments
from partreduce.topo.errors import InputError, ScheduleError
from partreduce.topo.hardware import Hardware
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.strategies.dynamic_groups import DynamicGroups
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.strategies.server import Server
from partreduce.topo.timing.compute import ComputeTimes
from partreduce.topo.timing.stages import Rounds, of_period, of_prologue
from partreduce.topo.timing.tables import RowAccess, TableRounds, exchange_of

MAX_CELLS = 50_000_000
PROTOCOLS = {
    DynamicGroups.kind: run_groups,
    Pairwise.kind: run_pairs,
    Server.kind: run_servers,
    "gap": run_gaps,
    "quorum": run_quorum,
}
"""The function that simulates each `Strategy.protocol`; strategies without a protocol have fixed phases."""


@check_arguments
def simulate(
    schedule: Schedule,
    hardware: Hardware | None = None,
    *,
    compute: ComputeTimes | None = None,
    num_rounds: int = 100,
    seed: int = 0,
    model_bytes: int | None = None,
    algorithm: AllReduceAlgorithm | None = None,
    touched: Mapping[str, RowAccess] | None = None,
) -> Timeline:
    """Simulate a schedule in virtual time. Deterministic for a seed.

    O(num_rounds · n) for fixed phases. Other kinds run the protocol objects of the runtime: concurrent transfers of
    `dynamic_groups`, `pairwise` and `server` share the links, and updates between neighbors queue on them. Embedding
    tables with placement `gather` or `sharded` are exchanged in each step, in which all workers synchronize.

    Args:
        schedule: any Schedule; a prologue is run first.
        hardware: links and speeds; None for links that take no time.
        compute: step times; None for those of the hardware.
        num_rounds: the number of rounds of every worker.
        seed: the seed of jitter, stragglers, and draws of partners.
        model_bytes: the size of the averaged parameters, unless the hardware has one.
        algorithm: the all-reduce algorithm; the schedule's by default.
        touched: for each table with placement `gather` or `sharded`, the share of its rows that a step touches.

    Returns:
        A Timeline: for each round and worker the seconds, from 0, at which it computes, communicates and ends.

    Raises:
        InputError: step times that do not fit the workers, no rounds, a timeline that does not fit into memory, or a
            table that is missing in `touched`.
        ScheduleError: groups overlap, or a schedule without fixed phases has tables with placement `gather` or
            `sharded`.
    """
    hardware = hardware or Hardware()
    compute = ComputeTimes.of(hardware) if compute is None else compute
    count = schedule.num_workers
    compute.check(count)
    if num_rounds < 1:
        raise InputError(f"rounds: {num_rounds}; at least 1 round is run")
    if num_rounds * count > MAX_CELLS:
        raise InputError(
            f"rounds: {num_rounds} rounds of {count} workers are more than {MAX_CELLS} intervals; "
            f"at most {max(1, MAX_CELLS // count)} rounds fit"
        )
    run = PROTOCOLS.get(schedule.strategy.protocol, run_rounds)
    algorithm = algorithm or schedule.strategy.transport.algorithm
    exchange = exchange_of(schedule, hardware, touched)
    if exchange is not None and run is not run_rounds:
        raise ScheduleError(
            f"schedule {schedule.name!r}: the simulator has no tables with strategy {schedule.strategy.kind!r}; "
            "take allreduce"
        )
    return run(Case(schedule.meetings, hardware, compute, num_rounds, seed, model_bytes, algorithm, exchange))


def run_rounds(case: Case) -> Timeline:
    """Simulate a schedule with fixed phases or rounds, its prologue first. O(num_rounds · n)."""
    schedule, num_rounds = case.schedule, case.num_rounds
    stages = of_period(schedule, case.hardware, model_bytes=case.model_bytes, algorithm=case.algorithm)
    prologue, sync = [], schedule.strategy.sync
    if schedule.prologue:
        first = of_prologue(schedule, case.hardware, model_bytes=case.model_bytes, algorithm=case.algorithm)
        prologue = [first] * schedule.prologue
    worker_steps, exchange = case.worker_steps(), case.exchange
    seconds = case.seconds() if exchange is None else case.seconds_of_steps()
    records = np.empty((5, num_rounds, schedule.num_workers))
    rounds = Rounds(sync, (schedule.num_workers,))
    meeting = None if exchange is None else TableRounds(rounds, exchange)
    waited = None if exchange is None else np.empty(records.shape[1:])
    operating = np.zeros(records.shape[1:]) if any(stage.segments or stage.turns for stage in stages) else None
    for round_ in range(num_rounds):
        later = round_ - len(prologue)
        stage = prologue[round_] if later < 0 else stages[later % len(stages)]
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
    rows = records[0], records[1], records[2], records[3], records[4]
    return Timeline(
        worker_steps,
        *rows,
        is_delayed=schedule.strategy.is_delayed,
        awaited=awaited,
        drained=rounds.drained(),
        operating=operating,
        exchanging=None if exchange is None else np.full(records.shape[1:], exchange.seconds) * worker_steps,
        waited=waited,
    )
