"""Long runs: protocols in virtual time train the models that they should, and runs are chosen and told in one way."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from benchmarks import kit
from benchmarks.lab.batches import Batches
from benchmarks.lab.contestants import contestants
from benchmarks.lab.gates import Clock
from benchmarks.lab.job import Job
from benchmarks.lab.rehearse import by_schedule
from benchmarks.lab.setting import settings
from benchmarks.lab.tasks import make_model, samples_of
from benchmarks.long_runs.__main__ import SHORT, best, wanted
from benchmarks.long_runs.learner import Learner
from benchmarks.long_runs.one_process import Learner as OneProcess
from benchmarks.long_runs.one_process import Together, Workers, changed
from benchmarks.long_runs.page import table
from benchmarks.long_runs.part import parts
from benchmarks.long_runs.theorem import Bounds, smoothness
from benchmarks.long_runs.virtual import Virtual
from partreduce.schedulers.registry import build
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import PartreduceError
from partreduce.topo.hardware import Hardware
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.axes import AllReduceAlgorithm
from partreduce.topo.strategies.dynamic_groups import DynamicGroups
from partreduce.topo.strategies.iteration_gap import IterationGap
from partreduce.topo.strategies.partial import PartialAllReduce
from partreduce.topo.strategies.static import GroupPhases, StaticGroups

CLUSTER = Cluster.parse("2x2")
FREE = Hardware(model_bytes=12)
RATE = 0.5


class Sloping:
    """Four models of three numbers, whose gradients are their worker's number, and part of where they are taken."""

    count, done = 4, 0.0

    def __init__(self, bend: float = 0.1) -> None:
        self.models, self.rate, self.taken, self.bend = torch.zeros(4, 3), RATE, [0] * 4, bend

    def gradient(self, rank: int, at: torch.Tensor) -> torch.Tensor:
        self.taken[rank] += 1
        return rank + 1.0 + self.bend * at

    def gradients(self) -> torch.Tensor:
        return torch.stack([self.gradient(rank, self.models[rank]) for rank in range(4)])

    def step(self, rank: int) -> None:
        self.models[rank] -= self.rate * self.gradient(rank, self.models[rank])

    def take(self, counts: list[int]) -> None:
        for rank, count in enumerate(counts):
            for _ in range(count):
                self.step(rank)


def trained(strategy, steps, slow=1.0, bend=0.1):
    """The learner after so many steps of each worker; the last one is `slow` times as slow."""
    learner = Sloping(bend)
    seconds = np.tile([1.0, 1.0, 1.0, slow], (steps, 1))
    virtual = Virtual(learner, Schedule("s", CLUSTER, strategy), FREE, seconds, AllReduceAlgorithm.RING)
    for step in range(steps):
        virtual.advance(step)
    return learner, virtual


def alone(advance, learner, steps):
    for step in range(steps):
        advance(step)
    return learner.models


@pytest.mark.parametrize("quorum", [PartialAllReduce(quorum="solo", staleness=16), PartialAllReduce(quorum=2)])
def test_a_late_gradient_joins_a_later_sum_and_everybody_applies_each_once(quorum):
    """One is five times as slow, and the others go on; a worker lacks what is on its way, at most two of everybody."""
    learner, virtual = trained(AllReduce(sync=quorum), 10, slow=5.0, bend=0.0)
    assert learner.taken[3] < min(learner.taken[:3])
    assert 10.0 < virtual.seconds < 20.0
    made = RATE / 4 * sum((rank + 1) * taken for rank, taken in enumerate(learner.taken))
    assert made - 2 * RATE / 4 * (1 + 2 + 3 + 4) <= -learner.models.min() <= made + 1e-5


def test_how_late_gradients_are_is_counted_with_the_sums_that_they_join():
    """Of a worker five times as slow more are late."""
    _, alike = trained(AllReduce(sync=PartialAllReduce(quorum="solo", staleness=16)), 10)
    learner, apart = trained(AllReduce(sync=PartialAllReduce(quorum="solo", staleness=16)), 10, slow=5.0)
    assert max(alike.summing.ages) < max(apart.summing.ages) <= 16
    assert len(apart.summing.ages) == apart.summing.summed_gradients <= sum(learner.taken)


def test_theorem_5_2_with_numbers_put_in():
    """Against the formulas by hand; nothing is late in a sum of all, and then the usual rate of SGD remains."""
    fields = {"workers": 4, "late": 2, "smooth": 3.0, "moment": 4.0, "gap": 6.0, "epsilon": 0.5}
    some, everybody = Bounds(quorum=1, **fields), Bounds(quorum=4, **fields)
    by_hand = ((0.5 * 4) ** 0.5 / (12 * 3 * 2 * 2 * 3) ** 0.5, 0.5 * 4 / (4 * 27 * 2 * 2 * 3), 0.5 / (12 * 4 * 3))
    assert some.rate == pytest.approx(min(by_hand))
    assert some.rounds == pytest.approx(6 * 2 * 3 / (4 * 0.25))
    assert (everybody.rate, everybody.rounds) == (pytest.approx(by_hand[2]), 0)


def test_one_layer_is_as_smooth_as_the_theorem_is_told():
    """Gradients at random models never differ by more than the constant times their distance."""
    learner = Learner(kind="linear", held_out=360, cluster=CLUSTER, highest=0.4, most=100, seed=0)
    constant, draw = smoothness(learner.inputs.flatten(1).numpy()), torch.Generator().manual_seed(0)
    for scale in (1e-3, 1e-1, 10.0):
        one, other = (learner.models[0] + scale * torch.randn(650, generator=draw) for _ in range(2))
        assert (learner.slope(one) - learner.slope(other)).norm() <= constant * (one - other).norm() * (1 + 1e-4)


def test_neighbors_in_serial_order_are_the_graphs_matrix():
    graph = build("ring", CLUSTER).strategy
    learner, virtual = trained(replace(graph, sync=IterationGap()), 6)
    plain = Sloping()
    expected = alone(by_schedule(plain, Schedule("ring", CLUSTER, graph)), plain, 6)
    assert torch.allclose(learner.models, expected, atol=1e-6)
    assert virtual.seconds == pytest.approx(6.0)


def test_groups_on_request_lose_no_step():
    learner, virtual = trained(DynamicGroups(group_size=2), 8, slow=4.0)
    assert sum(learner.taken) >= 8 * 4
    assert learner.taken[3] < learner.taken[0]
    assert virtual.seconds < 8 * 4.0


def test_rates_fall_to_nothing_along_half_a_cosine():
    learner = Learner(kind="perceptron", held_out=100, cluster=CLUSTER, highest=0.4, most=100, seed=0)
    said = []
    for learner.done in (0, 50, 100, 120):
        said.append(learner.rate)
    assert said == pytest.approx([0.4, 0.2, 0.0, 0.0])


def test_held_out_samples_belong_to_nobody():
    learner = Learner(kind="perceptron", held_out=100, cluster=CLUSTER, highest=0.4, most=100, seed=0)
    assert sum(map(len, learner._own)) == len(learner._samples) == 1797 - 100
    loss, share = learner.held_out(learner.models.mean(0))
    assert loss == pytest.approx(2.3, abs=0.3)
    assert share < 0.4


def test_the_best_rate_is_sought_up_and_down_and_then_other_seeds_are_run():
    part = parts()["text"]
    short, losses = part.steps // SHORT, {0.4: 2.0, 0.8: 1.0, 1.6: float("nan"), 0.2: 3.0}
    rows, asked = [], []
    while (following := wanted(part, rows, [0, 1])) is not None:
        steps, rate, seed = following
        asked.append(following)
        rows.append({"steps": steps, "rate": rate, "seed": seed, "held out": losses[rate]})
    assert best(rows, part.steps) == 0.8
    assert [one for one in asked if one[0] == short] == [(short, 0.8, 0), (short, 1.6, 0), (short, 0.4, 0)]
    assert asked[3:] == [(part.steps, 0.8, 0), (part.steps, 0.8, 1)]
    nothing = [{"steps": short, "rate": rate, "seed": 0, "held out": 2.31 + rate / 1000} for rate in (1.6, 3.2, 0.8)]
    assert wanted(part, nothing, [0]) == (short, 0.4, 0), "of runs that learned nothing the lowest rate leads on"


def test_every_contestant_has_a_schedule():
    for part in parts().values():
        for name in part.contestants:
            assert part.schedule_of(name)[0].num_workers == 16


def test_the_table_says_what_the_runs_say():
    part = parts()["digits"]
    run = {"contestant": "flat ring", "steps": part.steps, "rate": 0.4, "virtual": None, "right": 0.9, "training": 0.1}
    curve = [[0, 2.0], [500, 0.2], [1000, 0.1]]
    rows = [run | {"seed": seed, "held out": 0.2 + seed / 10, "curve": curve} for seed in range(3)]
    (line,) = table(part, rows).splitlines()[2:]
    assert "0.300 [0.200-0.400]" in line
    assert kit.reached(curve, 0.15) == pytest.approx((750.0,))
    assert kit.reached(curve, 0.05) is None


def test_one_process_trains_what_workers_and_replicas_do():
    """Means of models after each step, of replicas' models too, are one model's steps with all gradients, under SGD."""
    samples, job = samples_of("deep text"), Job(num_nodes=2, workers_per_node=2, task="deep text", momentum=0.9)
    together = Together(job, samples)
    learners: list[OneProcess] = [together]
    for shape in ("2x2", "2x1"):
        count = Cluster.parse(shape).num_workers
        all_of_them = StaticGroups(phases=GroupPhases((Phase.from_groups(count, [range(count)]),)))
        learners.append(Workers(job, samples, Schedule("all", Cluster.parse(shape), all_of_them)))
    for step in range(3):
        for learner in learners:
            learner.step(step)
    found = [torch.cat([part.detach().flatten() for part in one.mean().parameters()]) for one in learners]
    for other in found[1:]:
        assert torch.allclose(found[0], other, atol=1e-6)
    start = make_model("deep text", samples, Clock(), 0)
    assert (found[0] - torch.cat([part.detach().flatten() for part in start.parameters()])).abs().max() > 1e-3


def test_a_contestant_is_changed_in_what_is_named_alone():
    contestant = next(one for one in contestants(lambda *_: None) if one.name == "DiLoCo of replicas, every 15, int4")
    plain = contestant.make(Cluster.regular(4, 4), settings(16)["10gbit regions"])
    other = changed(plain, {"steps_per_round": 13, "payload": {"outer": {"momentum": "7/10"}}})
    assert (other.steps_per_round_of(0), other.strategy.payload.outer.momentum) == (13, Fraction(7, 10))
    assert other.strategy.payload.outer.nesterov
    assert other.strategy.transport == plain.strategy.transport
    assert changed(plain, {}) == plain
    with pytest.raises(PartreduceError, match=r"--change.*mass"):
        changed(plain, {"payload": {"outer": {"mass": 1}}})


def test_each_worker_of_one_process_has_an_adamw_of_its_own():
    samples, job = (
        samples_of("deep text"),
        Job(num_nodes=2, workers_per_node=1, task="deep text", optimizer="adamw", learning_rate=1e-3),
    )
    both = Workers(job, samples, build("local-sgd", Cluster.parse("2x1"), every=3))
    start = both.models[0].clone()
    for step in range(2):
        both.step(step)
    for rank in range(2):
        model, batches = make_model("deep text", samples, Clock(), 0).eval(), Batches(job, rank, samples)
        adamw = torch.optim.AdamW(model.parameters(), lr=job.learning_rate)
        for _ in range(2):
            batch, _ = batches.draw()
            adamw.zero_grad()
            torch.nn.functional.cross_entropy(model(samples.inputs[batch]), samples.labels[batch]).backward()
            adamw.step()
        own = torch.cat([part.detach().flatten() for part in model.parameters()])
        # Where a gradient is next to nothing its sign is the order of additions', and a step goes by it.
        assert (both.models[rank] - own).norm() < 0.01 * (own - start).norm()
