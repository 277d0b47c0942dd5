"""What else goes on after a loss: sums in stages, codecs, outer steps; each does what a replay of its views does."""

import re

import numpy as np
import pytest
import torch

from helpers import coded_sums
from helpers.goes_on_runs import RATE, gradient, own, replayed, run, start_of, views_of
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import MissingDependencyError
from partreduce.topo.failure_plan import FailurePlan, SurvivorRule
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import (
    AllReduce,
    AllReduceAlgorithm,
    Codec,
    GroupPhases,
    OuterParams,
    OuterStep,
    Payload,
    StaticGroups,
    Transport,
)
from partreduce.topo.survivors import after_failure

pytestmark = pytest.mark.processes

SIX, FOUR = (0, 1, 2, 3, 4, 5), (0, 1, 2, 3)
ALL, THREE = (0, 1, 2, 3), (0, 1, 3)
WIDE = 192
"""Numbers of a model whose sums have stages."""
STAGES = AllReduce(transport=Transport(algorithm=AllReduceAlgorithm.HIERARCHICAL))
DILOCO = OuterStep(lr=0.75, momentum=0.5, nesterov=True)
PAIRS_THEN_ALL = GroupPhases((Phase.from_groups(4, [(0, 1), (2, 3)]), Phase.from_groups(4, [ALL])))


def near(models):
    return {rank: pytest.approx(model, rel=1e-12, abs=1e-12) for rank, model in models.items()}


def joined(text, worker):
    """The round in which a worker joined, and with whose state."""
    found = re.findall(rf"worker {worker} joined in round (\d+) with the state of worker (\d), and all", text)
    return {worker: tuple(map(int, found[-1]))}


# Sums in stages.


@pytest.mark.parametrize("instant", ["before the sum", "in the sum", "prepared"])
def test_where_a_node_is_lost_the_others_still_sum_in_stages(instant):
    code, said, text = run({4: (instant, 4), 5: (instant, 4)}, strategy=STAGES, workers=6, nodes=3, size=WIDE)
    assert code == 0, text
    assert own(said) == replayed(lambda r: [SIX if r < 4 else FOUR], FOUR, workers=6, size=WIDE), text
    assert all(one["in_stages"] for one in said.values())


def test_where_nodes_are_left_unequal_sums_go_around_a_ring_and_in_stages_again_when_all_are_back():
    dies = {3: ("prepared", 4)}
    code, said, text = run(dies, strategy=STAGES, nodes=2, size=WIDE, steps=20, restarts=1, back=(3,))
    assert code == 0, text
    members = views_of(said)
    assert [members(round_) for round_ in (3, 4, 19)] == [ALL, (0, 1, 2), ALL]
    assert own(said) == replayed(lambda r: [members(r)], ALL, steps=20, size=WIDE), text
    assert all(one["in_stages"] for one in said.values())
    code, said, text = run(dies, strategy=STAGES, nodes=2, size=WIDE)
    assert (code, [one["in_stages"] for one in said.values()]) == (0, [False] * 3), text


# Codecs.

BLOCK = 16


def rounded_means(members_of, *, steps, size, codec="int8"):
    """The model of a run whose gradients travel in a codec, with feedback that begins anew with each view, in NumPy."""
    model, top = np.array(start_of(size), np.float32), coded_sums.LEVELS[codec]
    members, given_left, sum_left = (), np.zeros(0), np.zeros(0)
    for step in range(steps):
        if members_of(step) != members:
            members = members_of(step)
            given_left, sum_left = np.zeros((len(members), size), np.float32), np.zeros(size, np.float32)
        shares = [np.array(gradient(rank, step, size), np.float32) / np.float32(len(members)) for rank in members]
        mean = shares[0]
        if len(members) > 1:
            given, mean = np.stack(shares) + given_left, np.empty(size, np.float32)
            coded = np.empty_like(given)
            for start, end in coded_sums.cut(size, len(members), BLOCK):
                part = slice(start, end)
                for row, values in enumerate(given[:, part]):
                    coded[row, part] = coded_sums.in_blocks(values, BLOCK, top)
                total = coded_sums.added(coded[:, part]) + sum_left[part]
                mean[part] = coded_sums.in_blocks(total, BLOCK, top)
                sum_left[part] = total - mean[part]
            given_left = given - coded
        model -= np.float32(RATE) * mean
    return model.tolist()


@pytest.mark.parametrize("instant", ["before the sum", "in the sum", "prepared", "confirmed"])
def test_what_roundings_left_over_is_dropped_with_a_loss_and_models_stay_equal(instant):
    transport = Transport(codec=Codec.INT8, block=BLOCK, error_feedback=True)
    code, said, text = run({2: (instant, 4)}, strategy=AllReduce(transport=transport), size=WIDE, dtype=torch.float32)
    assert code == 0, text
    expected = rounded_means(views_of(said), steps=9, size=WIDE)
    assert own(said) == dict.fromkeys(THREE, expected), text


def test_who_joins_begins_with_nothing_left_over_and_so_do_all():
    transport = Transport(codec=Codec.INT4, block=BLOCK, error_feedback=True)
    code, said, text = run(
        {2: ("before the sum", 4)}, strategy=AllReduce(transport=transport), size=WIDE, dtype=torch.float32, steps=20,
        restarts=1, back=(2,),
    )  # fmt: skip
    assert code == 0, text
    expected = rounded_means(views_of(said), steps=20, size=WIDE, codec="int4")
    assert own(said) == dict.fromkeys(ALL, expected), text


@pytest.mark.parametrize("instant", ["before the sum", "prepared"])
@pytest.mark.parametrize("codec", [Codec.BFLOAT16, Codec.INT8])
def test_what_survivors_added_is_measured_from_the_last_mean_of_all_who_were_there(instant, codec):
    """In bfloat16 all that is sent here is exact, as long as it is counted from where all were together last."""
    strategy = AllReduce(steps_per_round=3, transport=Transport(codec=codec))
    code, said, text = run(
        {2: (instant, 1)}, strategy=strategy, steps_per_round=3, size=WIDE, dtype=torch.float32, steps=24
    )
    assert code == 0, text
    expected = replayed(lambda r: [ALL if r < 1 else THREE], THREE, steps_per_round=3, steps=24, size=WIDE)
    for rank, one in said.items():
        assert one["own"] == pytest.approx(expected[rank], rel=1e-6, abs=1e-6 if codec is Codec.BFLOAT16 else 0.5), text
        assert one["own"] == said[0]["own"]
        assert one["reference"] == 7, "the last round"


# Outer steps.


@pytest.mark.parametrize("instant", ["before the sum", "in the sum", "prepared", "confirmed"])
def test_outer_steps_go_on_from_the_anchor_and_the_momentum_that_all_have(instant):
    strategy = AllReduce(steps_per_round=3, payload=Payload(outer=DILOCO))
    code, said, text = run({2: (instant, 2)}, strategy=strategy, steps_per_round=3, steps=18)
    assert code == 0, text
    members = views_of(said)
    expected = replayed(
        lambda r: [members(r)], THREE, steps_per_round=3, steps=18, outer=DILOCO, present=lambda r: len(members(r))
    )  # fmt: skip
    assert own(said) == near(expected), text
    assert said[0]["own"] == said[1]["own"] == said[3]["own"]


def test_a_sum_of_all_that_others_have_committed_is_an_outer_step_of_who_comes_to_know_it_after_the_loss():
    """Worker 2 dies when all have confirmed round 2, and worker 1 takes its confirm for broken."""
    strategy = AllReduce(steps_per_round=3, payload=Payload(outer=DILOCO))
    dies = {2: ("before the sum", 3), 1: ("confirm breaks", 2)}
    code, said, text = run(dies, strategy=strategy, steps_per_round=3, steps=18)
    assert code == 0, text
    members = lambda r: ALL if r < 3 else THREE  # noqa: E731
    expected = replayed(
        lambda r: [members(r)], THREE, steps_per_round=3, steps=18, outer=DILOCO, present=lambda r: len(members(r))
    )  # fmt: skip
    assert own(said) == near(expected), text


def test_who_joins_has_anchor_and_momentum_of_the_donor():
    strategy = AllReduce(steps_per_round=3, payload=Payload(outer=DILOCO))
    code, said, text = run(
        {2: ("before the sum", 1)}, strategy=strategy, steps_per_round=3, steps=36, restarts=1, back=(2,), waits_at=9
    )
    assert code == 0, text
    members = views_of(said)
    expected = replayed(
        lambda r: [members(r)], ALL, steps_per_round=3, steps=36, joins=joined(text, 2), outer=DILOCO,
        present=lambda r: len(members(r)),
    )  # fmt: skip
    assert own(said) == near(expected), text
    assert len({tuple(model) for model in own(said).values()}) == 1


def test_who_is_left_alone_makes_outer_steps_of_its_own_rounds_and_who_joins_it_goes_on_from_them():
    strategy = AllReduce(steps_per_round=3, payload=Payload(outer=DILOCO))
    code, said, text = run(
        {1: ("in the sum", 2)}, strategy=strategy, steps_per_round=3, workers=2, max_failures=1, steps=36, restarts=1,
        back=(1,), waits_at=12,
    )  # fmt: skip
    assert code == 0, text
    members = views_of(said)
    assert members(2) == (0,)
    expected = replayed(
        lambda r: [members(r)], (0, 1), steps_per_round=3, workers=2, steps=36, joins=joined(text, 1), outer=DILOCO,
        present=lambda r: len(members(r)),
    )  # fmt: skip
    assert own(said) == near(expected), text


@pytest.mark.parametrize("instant", ["before the sum", "prepared"])
@pytest.mark.parametrize("round_", [4, 5], ids=["in a round of pairs", "in a round of all"])
def test_of_groups_with_a_round_of_all_survivors_make_outer_steps_where_all_of_them_meet(instant, round_):
    strategy = StaticGroups(phases=PAIRS_THEN_ALL, payload=Payload(outer=DILOCO))
    plan = FailurePlan(SurvivorRule.KEEP_GROUPS, 1)
    code, said, text = run({2: (instant, round_)}, strategy=strategy, failure_plan=plan, steps=12)
    assert code == 0, text
    resume = next(after for after, members in said[0]["views"] if len(members) == 3)
    schedule = Schedule("replayed", Cluster.regular(1, 4), strategy, failure_plan=plan)
    after = after_failure(schedule, {2})

    def replay(own_pair):
        def groups(r):
            if r < round_:
                return [group.members for group in schedule.phase(r)]
            if r < resume:
                return own_pair
            return [tuple(THREE[place] for place in group.members) for group in after.phase(r)]

        present = lambda r: 4 if r < resume else 3  # noqa: E731
        return near(replayed(groups, THREE, gradients=False, steps=12, outer=DILOCO, present=present))

    assert own(said) in [replay([]), replay([(0, 1)])], text


def test_anchors_of_each_worker_s_own_are_refused_in_a_line():
    strategy = StaticGroups(
        phases=PAIRS_THEN_ALL, payload=Payload(outer=OuterStep(lr=0.75, outer_params=OuterParams.PER_WORKER))
    )
    code, said, text = run({}, strategy=strategy, max_failures=1)
    assert (code, said) == (MissingDependencyError.exit_code, {}), text
    assert "strategy.payload: failure plans are for what is averaged synchronously" in text
