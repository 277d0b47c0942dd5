"""Predict the cost of a schedule of any kind: seconds, bytes, age of averaged values, memory (`partreduce.predict`).

Schedules with fixed phases use formulas and proofs. All others are simulated in virtual time, with the same protocol
code that runs between real workers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache, partial

from partreduce.schedulers.protocols.hop import hop_of
from partreduce.schedulers.simulator.simulate import simulate
from partreduce.schedulers.simulator.timeline import Timeline
from partreduce.topo.argument_types import check_arguments
from partreduce.topo.hardware import Hardware
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.strategies.base import Averaging, Strategy
from partreduce.topo.strategies.dynamic_groups import DynamicGroups
from partreduce.topo.strategies.iteration_gap import IterationGap
from partreduce.topo.strategies.neighbor import NeighborAveraging
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.strategies.partial import LateGradientPolicy, PartialAllReduce
from partreduce.topo.strategies.server import Server
from partreduce.topo.timing.compute import ComputeTimes
from partreduce.topo.timing.cost import bytes_of, communication
from partreduce.topo.timing.event_graph import cycle_time
from partreduce.topo.timing.stages import sample
from partreduce.topo.timing.tables import Exchange, RowAccess, exchange_of, steady_seconds
from partreduce.verify.facts import ScheduleFacts
from partreduce.verify.gap_bounds import capacities_of, events_of

ROUNDS = 200


@dataclass(frozen=True, slots=True)
class Prediction:
    """The cost of a schedule on a cluster. Seconds and bytes are per step of the workers with most steps.

    For kinds without common rounds they are means over the steps of all workers. `step_seconds` includes waiting and
    communication that no overlap hides, `communication_seconds` is the links' time only, and `nic_bytes` counts bytes
    out of the busiest node; `peak_nic_bytes` is the most that one step sends from it, None if unknown.

    `largest_age` and `mean_age`, None if unknown, are in steps of a worker: how many of the last steps of another
    worker an average may lack. For pipelines of gradients and asynchronous servers: how many steps old the parameters
    are with which a gradient (server: a worker's progress) was computed, when it is applied.

    `arrays` is the busiest worker's maximum memory in addition to the parameters, in units of their size, including
    messages that its protocol allows to arrive; `memory_bytes` is the same in bytes. `how` is the source of step and
    age: `exact`, `sampled` (from varying step times), or `simulated`.
    """

    step_seconds: float
    communication_seconds: float
    nic_bytes: float
    largest_age: float | None
    mean_age: float | None
    arrays: float
    memory_bytes: float
    how: str
    peak_nic_bytes: float | None = None


@check_arguments
def predict(
    schedule: Schedule,
    hardware: Hardware,
    *,
    compute: ComputeTimes | None = None,
    model_bytes: int | None = None,
    algorithm: AllReduceAlgorithm | None = None,
    num_rounds: int = ROUNDS,
    seed: int = 0,
    touched: Mapping[str, RowAccess] | None = None,
) -> Prediction:
    """Predict the cost of a schedule. Fixed phases: O(n · period) at most; others: a simulation of `num_rounds` rounds.

    Args:
        schedule: a schedule of any kind.
        hardware: links and speeds.
        compute: step times; None for those of the hardware.
        model_bytes: the model's size, unless the hardware states it.
        algorithm: how groups average; the schedule's own by default.
        num_rounds: rounds to simulate if there are no fixed phases.
        seed: seed of the simulation.
        touched: the fraction of each separately placed table that a step touches; `communication_seconds` and
            `nic_bytes` count their exchange, `arrays` only the arrays of the strategy.

    Returns:
        A Prediction: seconds and bytes per step, ages in steps, and bytes of memory.

    Raises:
        InputError: the model's size is neither given nor part of the hardware, or `touched` lacks a table.
        ScheduleError: groups overlap.
    """
    size = bytes_of(hardware, model_bytes)
    compute = ComputeTimes.of(hardware) if compute is None else compute
    stated = ScheduleFacts(schedule)
    arrays = None if schedule.strategy.protocol else stated.numbers("memory")["arrays"]
    schedule = schedule.meetings
    run = partial(
        simulate, schedule, hardware, compute=compute, num_rounds=num_rounds, seed=seed, model_bytes=size,
        algorithm=algorithm, touched=touched,
    )  # fmt: skip
    if arrays is None:
        return _predict_by_run(schedule, run(), size)
    cost = communication(schedule, hardware, model_bytes=size, algorithm=algorithm)
    exchange = exchange_of(schedule, hardware, touched)
    if exchange is None:
        timed = cycle_time if compute.is_fixed else sample
        step = timed(schedule, hardware, compute, model_bytes=size, algorithm=algorithm).per_step
    elif compute.is_fixed:
        step = steady_seconds(schedule, hardware, compute, exchange, model_bytes=size, algorithm=algorithm)
    else:
        step = run().per_step(warm_up=num_rounds // 4)
    apart, largest, mean = exchange or Exchange(), None, None
    if schedule.strategy.averages_everyone:
        largest = mean = _age_of_everyone(schedule)
    elif (behind := stated.numbers("end").get("behind", -1)) >= 0:  # claim `staleness`
        largest = float((behind - 1 + schedule.strategy.sync.lag) * int(schedule.worker_steps().max()))
    return Prediction(
        step,
        cost.per_step + apart.seconds,
        cost.nic_bytes_per_step + apart.nic_bytes,
        largest,
        mean,
        arrays,
        arrays * size,
        "exact" if compute.is_fixed else "sampled",
        cost.peak_nic_bytes,
    )


def _predict_by_run(schedule: Schedule, timeline: Timeline, size: int) -> Prediction:
    """Predict from a simulated run; `size` is the model's in bytes.

    Only `step_seconds` leaves out the first quarter of the rounds, as a warm-up.
    """
    num_rounds, observed, worker_steps = timeline.num_rounds, timeline.observed, schedule.worker_steps()
    assert observed is not None, "every protocol counts what it sends"
    steps = num_rounds * float(worker_steps.mean() if timeline.free_running else worker_steps.max())
    largest, mean = observed.largest_age, observed.mean_age
    if not timeline.free_running:
        largest = mean = _age_of_everyone(schedule)
    arrays = ARRAYS[schedule.strategy.protocol](schedule.strategy, schedule.num_workers)
    return Prediction(
        timeline.per_step(warm_up=num_rounds // 4),
        float(timeline.communicating().mean()) / steps,
        float(observed.nic_bytes.max(initial=0.0)) / steps,
        largest,
        mean,
        arrays,
        arrays * size,
        "simulated",
    )


def _age_of_everyone(schedule: Schedule) -> float:
    """Return the age in steps, equally the largest and the mean one, of a schedule that averages all in each round."""
    sync = schedule.strategy.sync
    return float(sync.lag * int(schedule.worker_steps().max()) + sync.late_steps)


def _server_arrays(strategy: Strategy, num_workers: int) -> float:
    """Return the number of parameter-sized arrays on a server's host, which is also a worker.

    Synchronous: the sums, the answers, and for every worker a copy of the shard that waits to be added. Asynchronous:
    the parameters from which progress counts, the progress, the answers; and shard-sized the value, a snapshot on its
    way to the other workers, and a push of every worker.
    """
    assert isinstance(strategy, Server), "the registry names the kind"
    shard = 1 / len(strategy.hosts)
    keeps_start = strategy.mixes_late or strategy.averaging is Averaging.STEP_NORMALIZED
    return 2 + keeps_start + num_workers * shard if strategy.synchronous else 3 + (2 + num_workers) * shard


def _pairwise_arrays(strategy: Strategy, num_workers: int) -> float:
    """Return the number of parameter-sized arrays of an AD-PSGD worker: model copy, last model, progress, messages.

    An active worker has a request and its answer, a passive one a request of every active worker.
    """
    assert isinstance(strategy, Pairwise), "the registry names the kind"
    return 3 + max(2, sum(len(strategy.passive_of(worker, num_workers)) > 0 for worker in strategy.active))


@lru_cache(maxsize=32)  # plans for other optimizers ask again
def _gap_arrays(strategy: Strategy, num_workers: int) -> float:
    """Return the number of parameter-sized arrays of Hop's busiest worker: queues, snapshots, sums, step start.

    A queue has a place for each step that its in-neighbor can be ahead, plus one; under staleness only one. A snapshot
    is kept while an out-neighbor may have to reduce it, and the next one is made before it is freed. With more than
    1,024 workers, 64 evenly spaced ones are examined.
    """
    assert isinstance(strategy, NeighborAveraging), "the registry names the protocol"
    assert isinstance(strategy.sync, IterationGap), "the registry names the protocol"
    hop = hop_of(strategy.rounds[0], strategy.sync)
    events = events_of(hop.graph, hop.setting)
    seen = range(0, num_workers, 1 if num_workers <= 1024 else num_workers // 64)
    rooms = (capacities_of(hop.graph, hop.setting, worker, events) for worker in seen)
    most = max(sum(room.slots.values()) + max(room.sent.values(), default=0) for room in rooms)
    return 1 + strategy.sync.lag + most + 1


def _quorum_arrays(strategy: Strategy, _num_workers: int) -> float:
    """Return the number of parameter-sized arrays under a quorum: mean model, send buffer, results waiting and taken.

    The running sum counts as a waiting result. A step takes all waiting results, or one, and more may arrive while it
    applies them. With `latest` one result waits in addition to the running sum.
    """
    sync = strategy.sync
    assert isinstance(sync, PartialAllReduce), "the registry names the protocol"
    takes_all = sync.keeps_equal and sync.count is LateGradientPolicy.OPEN_ROUND
    return 2 + (sync.staleness if sync.keeps_equal else 2) + (sync.staleness if takes_all else 1)


ARRAYS: dict[str, Callable[[Strategy, int], float]] = {
    Server.kind: _server_arrays,
    Pairwise.kind: _pairwise_arrays,
    # One array for the sums, and the round's initial parameters if progress is normalized.
    DynamicGroups.kind: lambda strategy, _: 1 + (strategy.averaging is Averaging.STEP_NORMALIZED),
    "gap": _gap_arrays,
    "quorum": _quorum_arrays,
}
"""By protocol, a function of (strategy, number of workers) for one worker's number of parameter-sized arrays.

The claim `memory` does not cover these protocols.

Raises:
    ScheduleError: a queue without a limit.
"""
