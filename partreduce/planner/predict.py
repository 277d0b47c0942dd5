"""`partreduce.predict`: what a schedule of any kind costs, as one value: seconds, bytes, age, memory.

Kinds with fixed phases say it by formulas and proofs. The others are run in virtual time, by the protocol that runs
between real workers, and what is counted there is the prediction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from partreduce.schedulers.protocols.hop import Hop, hop_of
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
from partreduce.topo.timing.sampling import sample
from partreduce.topo.timing.table_steps import exchange_of, steady_seconds
from partreduce.topo.timing.tables import Exchange, RowAccess
from partreduce.verify.checker.events import EventGraph
from partreduce.verify.facts import ScheduleFacts
from partreduce.verify.gap_bounds import capacities_of, events_of

ROUNDS = 200


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a schedule costs on a cluster. Seconds and bytes are per step of the workers with most steps.

    Of kinds without common rounds they are per step of all workers, on average. `step_seconds` includes waiting and
    what no overlap hides, `communication_seconds` is the links' time alone, and `nic_bytes` leaves the busiest node;
    `peak_nic_bytes` is the most that one step sends from it, None where that is not known.

    `largest_age` and `mean_age` are in steps of a worker: by how many steps of another worker what a worker averages
    may be behind when it has averaged; where progress is added to what others change meanwhile (pipelines of gradients,
    asynchronous servers), by how many the parameters that it was computed with are. None where it is not known.

    `arrays` are kept beside the parameters by the busiest worker, at most, in units of their size, messages that
    its protocol lets arrive included; `memory_bytes` are these. `how` says where step and age come from: `exact`,
    `sampled` (computing that varies), or `simulated`.
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
    """Predict a schedule of any kind. Fixed phases: O(n · period) at most; others: a simulation of `num_rounds` rounds.

    Args:
        schedule: of any kind.
        hardware: links and speeds.
        compute: step times; None for those of the hardware.
        model_bytes: the model's size, unless the hardware states it.
        algorithm: how groups average; the schedule's own by default.
        num_rounds: rounds that are simulated, where there are no fixed phases.
        seed: of what is drawn there.
        touched: how much of each table that goes its own way a step touches; `communication_seconds` and `nic_bytes`
            count their exchange, `arrays` only what the strategy averages.

    Raises:
        InputError: the model's size is neither given nor part of the hardware, or a table of which `touched` says
            nothing.
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
        return _simulated(schedule, run(), size)
    cost = communication(schedule, hardware, model_bytes=size, algorithm=algorithm)
    exchange = exchange_of(schedule, hardware, touched)
    if exchange is None:
        timed = cycle_time if compute.is_fixed else sample
        step = timed(schedule, hardware, compute, model_bytes=size, algorithm=algorithm).per_step
    elif compute.is_fixed:
        step = steady_seconds(schedule, hardware, compute, exchange, model_bytes=size, algorithm=algorithm)
    else:
        step = run().per_step(warm_up=num_rounds // 4)
    apart = exchange or Exchange()
    largest, mean = _age_of_rounds(schedule, stated)
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


def _simulated(schedule: Schedule, timeline: Timeline, size: int) -> Prediction:
    """As `partreduce simulate`; the first quarter of the rounds is left out of the seconds."""
    num_rounds = timeline.num_rounds
    observed, worker_steps = timeline.observed, schedule.worker_steps()
    assert observed is not None, "every protocol counts what it sends"
    steps = num_rounds * float(worker_steps.mean()) if timeline.free_running else num_rounds * float(worker_steps.max())
    largest, mean = observed.largest_age, observed.mean_age
    if not timeline.free_running:
        largest, mean = _age_of_everyone(schedule)
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


def _age_of_rounds(schedule: Schedule, stated: ScheduleFacts) -> tuple[float | None, float | None]:
    """Of fixed rounds: as claim `staleness` says; of sums over all it is also the mean."""
    if schedule.strategy.averages_everyone:
        return _age_of_everyone(schedule)
    met = stated.numbers("end").get("behind", -1)
    if met < 0:
        return None, None
    return float((met - 1 + schedule.strategy.sync.lag) * int(schedule.worker_steps().max())), None


def _age_of_everyone(schedule: Schedule) -> tuple[float, float]:
    """Every round is over all: what is late is late by the same for all."""
    sync = schedule.strategy.sync
    age = float(sync.lag * int(schedule.worker_steps().max()) + sync.late_steps)
    return age, age


def _server_arrays(strategy: Strategy, num_workers: int) -> float:
    """Arrays of a host, which is a worker, too.

    Synchronous: the one for the sums, its answers, and of every worker a part of the shard that waits for those before
    it. Asynchronous: the parameters from which progress counts, the progress, the answers; of the shard its value, a
    snapshot of it on the way to the others, and a push of every worker.
    """
    assert isinstance(strategy, Server), "the registry names the kind"
    shard = 1 / len(strategy.hosts)
    keeps_start = strategy.mixes_late or strategy.averaging is Averaging.STEP_NORMALIZED
    if strategy.synchronous:
        return 2 + int(keeps_start) + num_workers * shard
    return 3 + (2 + num_workers) * shard


def _pairwise_arrays(strategy: Strategy, num_workers: int) -> float:
    """The model beside the live parameters, those of the last adoption, the progress, and what is on the way.

    That is a question and its answer for an active worker, and for a passive one a question of every active worker.
    """
    assert isinstance(strategy, Pairwise), "the registry names the kind"
    asking = sum(len(strategy.passive_of(worker, num_workers)) > 0 for worker in strategy.active)
    return 3 + max(2, asking)


def _generated_arrays(strategy: Strategy, num_workers: int) -> float:  # noqa: ARG001 - the signature of all
    """One for the sums, and the parameters with which a round began where progress is normalized."""
    return 1 + int(strategy.averaging is Averaging.STEP_NORMALIZED)


def _gap_arrays(strategy: Strategy, num_workers: int) -> float:
    """What `queue_arrays` of the busiest worker are, and one for the sums, or two where a step's start is kept.

    Of more than 1,024 workers 64 are looked at, evenly spread. O(workers · the edges near one).
    """
    assert isinstance(strategy, NeighborAveraging), "the registry names the protocol"
    assert isinstance(strategy.sync, IterationGap), "the registry names the protocol"
    hop = hop_of(strategy.rounds[0], strategy.sync)
    seen = range(num_workers) if num_workers <= 1024 else range(0, num_workers, num_workers // 64)
    events = events_of(hop.graph, hop.setting)
    return 1 + strategy.sync.lag + max(queue_arrays(hop, worker, events) for worker in seen)


def queue_arrays(hop: Hop, worker: int, events: EventGraph | None = None) -> int:
    """Models in a worker's queues at most, and snapshots that its out-neighbors may still be sent.

    A queue has a place for each step that its in-neighbor can be ahead, and one more; under staleness only one. A
    snapshot is kept while an out-neighbor may have to reduce it, and another one is made before it is gone.

    Raises:
        ScheduleError: a queue without a limit.
    """
    room = capacities_of(hop.graph, hop.setting, worker, events)
    return sum(room.slots.values()) + max(room.sent.values(), default=0) + 1


def _quorum_arrays(strategy: Strategy, num_workers: int) -> float:  # noqa: ARG001 - the signature of all
    """One for the mean model, the send buffer, each result that may wait (the sum that runs among them), and the taken.

    A call takes all that wait, or one, and others may come while it applies them. With `latest` one result waits beside
    the sum that runs.
    """
    sync = strategy.sync
    assert isinstance(sync, PartialAllReduce), "the registry names the protocol"
    waiting = sync.staleness if sync.keeps_equal else 2
    return 2 + waiting + (sync.staleness if sync.keeps_equal and sync.count is LateGradientPolicy.OPEN_ROUND else 1)


ARRAYS: dict[str, Callable[[Strategy, int], float]] = {
    Server.kind: _server_arrays,
    Pairwise.kind: _pairwise_arrays,
    DynamicGroups.kind: _generated_arrays,
    "gap": _gap_arrays,
    "quorum": _quorum_arrays,
}
"""By `Strategy.protocol` the arrays of what has no fixed phases, so that no claim `memory` speaks of it."""
