"""A saved and resumed run matches an uninterrupted run bit for bit, with error feedback and outer state.

The conformance table and the random runs compare checkpoints with plain torch. These runs have no such reference or
more state: codecs with feedback, references, host memory, BatchNorm statistics, and uneven data after the restart.
"""

import contextlib
from dataclasses import dataclass, field

import pytest
import torch

from helpers.training import Training, group_phases
from partreduce import Cluster, Schedule, load_checkpoint, save_checkpoint
from partreduce import strategies as st

DILOCO = st.OuterStep(lr=0.7, momentum=0.9, nesterov=True)
OUTER = st.Payload(outer=DILOCO)
OWN = st.Payload(outer=st.OuterStep(lr=0.7, momentum=0.9, nesterov=True, outer_params="per_worker"))
NORMALIZED = {"averaging": st.Averaging.STEP_NORMALIZED}
PAIRS = group_phases(3, [[0, 1]], [[1, 2]], [[0, 1, 2]])
PAIR_THEN_ALL = group_phases(3, [[0, 1]], [[0, 1, 2]])
NODES_THEN_ALL = group_phases(4, [[0, 1], [2, 3]], [range(4)])
THREE, TWO_NODES = Cluster.regular(1, 3), Cluster.regular(2, 2)
INT8 = st.Transport(codec=st.Codec.INT8, block=32)
FED_BACK = st.Transport(codec=st.Codec.INT8, block=8, error_feedback=True)
IN_STAGES = st.Transport(
    algorithm=st.AllReduceAlgorithm.HIERARCHICAL, codec=st.Codec.INT8, block=8, error_feedback=True
)
LATE = st.DelayedAveraging()
CROWDED = {"steps_per_round": 6, "sync": st.DelayedMerge(steps=5, alpha="1/2")}
"""Fragments are merged after 2, 4 and 6 of 6 steps and sent after 3, 5 and 1: up to three are in flight."""
STREAMING = {"steps_per_round": 7, "sync": st.DelayedMerge(steps=1, alpha="1/2")}
"""Fragments are merged after 2, 4 and 7 of 7 steps: one is in flight after 1, 3 and 6."""
THIRDS = st.Payload(outer=DILOCO, fragments=3)
INT4_FED_BACK = st.Transport(codec=st.Codec.INT4, error_feedback=True)
INT8_WHOLE = st.Transport(codec=st.Codec.INT8)


@dataclass(frozen=True)
class SavedRun:
    """A strategy, and the steps after which it is saved, counted on the worker with the shortest rounds."""

    strategy: object
    steps: tuple[int, ...]
    cluster: Cluster = THREE
    options: dict = field(default_factory=dict)
    """Options of the optimizer that resumes."""
    before: int = 0
    """Steps of the optimizer that resumes before it loads, which must leave no state."""
    by_states: tuple[int, ...] = ()
    """Steps after which torch saves state dicts of the model and the optimizer."""


ON_HOST = {"outer_state": "host"}
ROWS = {
    "codec": SavedRun(st.AllReduce(steps_per_round=4, transport=INT8), (11,)),
    "codec, late": SavedRun(st.AllReduce(steps_per_round=4, transport=INT8, sync=LATE), (9,)),
    "codec, unequal": SavedRun(st.AllReduce(steps_per_round=(4, 2, 4), transport=INT8, **NORMALIZED), (5,)),
    "codec, nodes": SavedRun(
        st.StaticGroups(phases=NODES_THEN_ALL, steps_per_round=2, transport=INT8_WHOLE), (6,), TWO_NODES
    ),
    "codec, nodes, late": SavedRun(
        st.StaticGroups(phases=NODES_THEN_ALL, steps_per_round=2, transport=INT8_WHOLE, sync=LATE), (4,), TWO_NODES
    ),
    "feedback": SavedRun(st.AllReduce(transport=FED_BACK), (4,), TWO_NODES, before=2),
    "feedback, in stages": SavedRun(st.AllReduce(transport=IN_STAGES), (4,), TWO_NODES, before=2),
    "feedback, servers": SavedRun(st.Server(hosts=(1, 2), transport=FED_BACK), (4,), TWO_NODES, before=2),
    "feedback, pipeline": SavedRun(st.AllReduce(sync=st.Pipeline(), transport=FED_BACK), (4,), before=2),
    "float16, pipeline": SavedRun(
        st.AllReduce(sync=st.Pipeline(), transport=st.Transport(codec=st.Codec.FLOAT16)), (4,), before=2
    ),
    **{f"pipeline of {n}": SavedRun(st.AllReduce(sync=st.Pipeline(width=n)), (), by_states=(5,)) for n in (2, 3)},
    "groups, unequal": SavedRun(st.StaticGroups(phases=PAIRS, steps_per_round=(4, 2, 4), **NORMALIZED), (7,)),
    "groups, unequal, late": SavedRun(
        st.StaticGroups(phases=PAIRS, steps_per_round=(4, 2, 4), sync=LATE, **NORMALIZED),
        (5,),
        before=2,
    ),
    "outer": SavedRun(st.AllReduce(steps_per_round=5, payload=OUTER), (8,), options=ON_HOST, by_states=(3, 5)),
    "outer, nested": SavedRun(
        st.StaticGroups(phases=PAIR_THEN_ALL, steps_per_round=2, payload=OUTER), (5,), options=ON_HOST
    ),
    "outer, own": SavedRun(
        st.StaticGroups(phases=PAIR_THEN_ALL, steps_per_round=2, payload=OWN), (5,), options=ON_HOST
    ),
    "outer, unequal": SavedRun(
        st.AllReduce(steps_per_round=(5, 10, 5), payload=OUTER, **NORMALIZED), (8,), options=ON_HOST
    ),
    "outer, own, unequal": SavedRun(
        st.StaticGroups(phases=PAIR_THEN_ALL, steps_per_round=(4, 2, 4), payload=OWN, **NORMALIZED),
        (5,),
        options=ON_HOST,
    ),
    "unequal fragments": SavedRun(
        st.AllReduce(steps_per_round=(4, 5, 6), payload=st.Payload(outer=DILOCO, fragments=2)), (4,)
    ),
    "fragments": SavedRun(st.AllReduce(payload=THIRDS, **STREAMING), (1, 10), by_states=(3, 5, 6)),
    "fragments, codec": SavedRun(st.AllReduce(payload=THIRDS, transport=INT8_WHOLE, **STREAMING), (4, 6)),
    "fragments, three in flight": SavedRun(st.AllReduce(payload=THIRDS, **CROWDED), (3,)),
    "fragments, three in flight, feedback": SavedRun(
        st.AllReduce(payload=THIRDS, transport=INT4_FED_BACK, **CROWDED), (5, 6)
    ),
}
IN_FLIGHT = {
    ("fragments", 1): {0}, ("fragments", 10): {1}, ("fragments, codec", 4): set(), ("fragments, codec", 6): {2},
    ("fragments, three in flight", 3): {0, 2}, ("fragments, three in flight, feedback", 5): {0, 1, 2},
    ("fragments, three in flight, feedback", 6): {0, 1},
}  # fmt: skip
"""The fragments in flight when the run is saved."""


def state_of(training):
    """Return parameters, buffers and the state of the strategy."""
    state = {name: tensor.clone() for name, tensor in training.optimizer.runner.state().items()}
    return {**state, "values": training.values().clone(), **{n: b.clone() for n, b in training.model.named_buffers()}}


def save(training, folder, way):
    if way == "checkpoint":
        save_checkpoint(training.optimizer, folder)
    elif way != "worker 0's states" or training.rank == 0:
        states = {"model": training.model.state_dict(), "optimizer": training.optimizer.state_dict()}
        torch.save(states, folder / f"{training.rank}.pt")


def load(training, folder, way):
    if way == "checkpoint":
        load_checkpoint(training.optimizer, folder)
        return
    states = torch.load(folder / f"{training.rank if way == 'own states' else 0}.pt", weights_only=True)
    training.model.load_state_dict(states["model"])
    training.optimizer.load_state_dict(states["optimizer"])


CASES = [
    *((name, steps, "checkpoint") for name, row in ROWS.items() for steps in row.steps),
    *((name, steps, "own states") for name, row in ROWS.items() for steps in row.by_states),
    # Only parameters are equal then: BatchNorm statistics differ between workers until they are averaged.
    *((name, 5, "worker 0's states") for name in ("pipeline of 2", "pipeline of 3")),
]


@pytest.mark.filterwarnings("ignore:partreduce. (.* dropped|schedule .* has a pipeline of 3|step .* holds worker)")
@pytest.mark.parametrize(("name", "saved", "way"), CASES)
def test_resumed_run_matches_an_uninterrupted_run_bit_for_bit(ranks, tmp_path, name, saved, way):
    """The resumed run also enters the mean model after some steps; then the data ends unevenly."""
    row = ROWS[name]
    schedule = Schedule(name, row.cluster, row.strategy)
    shortest = schedule.worker_steps().min()

    def work(world, *, resumes):
        training = Training(world, schedule, batch_norm=True, **(row.options if resumes and world.rank else {}))
        own = schedule.steps_per_round_of(world.rank)
        steps = saved * own // shortest
        training.steps(row.before * own // shortest if resumes else steps)
        (load if resumes else save)(training, tmp_path, way)
        assert training.optimizer.steps == steps
        kept = state_of(training)
        for _ in range(4 if len(schedule.strategy.step_counts) == 1 else 0):
            training.steps(1)
            with training.optimizer.mean_model() if resumes else contextlib.nullcontext():
                pass
        training.to_the_end(8)
        return kept, state_of(training)

    whole = ranks.run(row.cluster.num_workers, lambda world: work(world, resumes=False))
    again = ranks.run(row.cluster.num_workers, lambda world: work(world, resumes=True))
    for before, after in zip(whole, again, strict=True):
        for mine, theirs in zip(before, after, strict=True):
            assert mine.keys() == theirs.keys()
            kept = mine if way != "worker 0's states" else ["values"]
            assert [key for key in kept if not torch.equal(mine[key], theirs[key])] == []
        if way == "checkpoint" and name.startswith("fragments"):
            assert {int(key[0]) for key in before[0] if "flight" in key} == IN_FLIGHT[name, saved]
        if name.startswith("outer"):
            kept = "outer_params" if "own" in name else "reference"
            assert {"momentum/0", f"{kept}/0", f"{kept}/place"} <= before[0].keys()
