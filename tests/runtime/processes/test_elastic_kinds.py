"""What else goes on after a loss: sums in stages, codecs, outer steps; each does what a replay of its views does."""

import itertools
import re

import numpy as np
import pytest
import torch

from helpers import coded_sums
from helpers.elastic_runs import (
    EVEN_ODD,
    RATE,
    gradient,
    own,
    replayed,
    replayed_by_steps,
    replayed_own_outer,
    run,
    start_of,
    views_of,
)
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError
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
from partreduce.topo.strategies.axes import GradientBuckets
from partreduce.topo.strategies.base import Averaging
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


OWN = OuterStep(lr=0.75, momentum=0.25, outer_params=OuterParams.PER_WORKER)
PAIRS = StaticGroups(
    phases=GroupPhases(tuple(Phase.from_groups(4, two) for two in EVEN_ODD)), payload=Payload(outer=OWN)
)


@pytest.mark.parametrize("instant", ["before the sum", "in the sum", "prepared", "confirmed"])
def test_outer_parameters_of_each_worker_s_own_stay_with_the_survivors(instant):
    code, said, text = run({2: (instant, 4)}, strategy=PAIRS, steps=12)
    assert code == 0, text
    resume = next(after for after, members in said[0]["views"] if len(members) == 3)

    def replay(done):
        groups = lambda r: EVEN_ODD[r % 2] if r < 4 else done[r - 4] if r < resume else [THREE]  # noqa: E731
        return near(replayed_own_outer(groups, THREE, steps=12, outer=OWN))

    # Rounds that only one of the pairs had done before the failure are left out by the others.
    some = [[[], pairs[:1], pairs[1:], pairs] for pairs in (EVEN_ODD[r % 2] for r in range(4, resume))]
    assert own(said) in [replay(done) for done in itertools.product(*some)], text


def test_who_joins_has_the_outer_parameters_of_its_donor():
    strategy = StaticGroups(phases=GroupPhases((Phase.from_groups(4, [ALL]),)), payload=Payload(outer=OWN))
    code, said, text = run({2: ("before the sum", 4)}, strategy=strategy, steps=24, restarts=1, back=(2,))
    assert code == 0, text
    members = views_of(said)
    expected = replayed_own_outer(lambda r: [members(r)], ALL, steps=24, outer=OWN, joins=joined(text, 2))
    assert own(said) == near(expected), text


def test_outer_parameters_of_each_worker_s_own_are_in_no_failure_plan():
    with pytest.raises(ScheduleError, match="is per_worker; none is proved"):
        Schedule("planned", Cluster.regular(1, 4), PAIRS, failure_plan=FailurePlan(SurvivorRule.KEEP_GROUPS, 1))


# Layers.

LAYERS = Transport(gradient_buckets=GradientBuckets.PER_LAYER)
LAYER = 2**14
"""Numbers of a layer that is sent by itself."""


@pytest.mark.parametrize("instant", ["layers left", "in the sum", "prepared", "confirmed"])
def test_layers_that_had_left_are_sent_again_by_the_survivors(instant):
    code, said, text = run({2: (instant, 4)}, strategy=AllReduce(transport=LAYERS), size=3 * LAYER, parameters=3)
    assert code == 0, text
    members = views_of(said)
    assert members(4 + (instant == "confirmed")) == THREE
    assert own(said) == replayed(lambda r: [members(r)], THREE, size=3 * LAYER), text


def test_layers_of_two_failures_and_of_who_joins():
    deaths = {2: ("layers left", 3), 1: ("layers left", 5)}
    options = {"steps": 20, "size": 2 * LAYER, "parameters": 2, "restarts": 2, "back": (1, 2)}
    code, said, text = run(deaths, strategy=AllReduce(transport=LAYERS), **options)
    assert code == 0, text
    members = views_of(said)
    assert members(19) == ALL
    assert own(said) == replayed(lambda r: [members(r)], ALL, steps=20, size=2 * LAYER), text


def test_layers_by_a_codec_with_feedback_that_begins_again():
    transport = Transport(
        codec=Codec.INT8, block=BLOCK, error_feedback=True, gradient_buckets=GradientBuckets.PER_LAYER
    )
    options = {"size": WIDE, "dtype": torch.float32}
    code, said, text = run({2: ("in the sum", 4)}, strategy=AllReduce(transport=transport), **options)
    assert code == 0, text
    assert own(said) == dict.fromkeys(THREE, rounded_means(views_of(said), steps=9, size=WIDE)), text


# Averaging by steps.

BY_STEPS = AllReduce(steps_per_round=(2, 3, 2, 1), averaging=Averaging.STEP_NORMALIZED)


@pytest.mark.parametrize("instant", ["before the sum", "in the sum", "prepared", "confirmed"])
def test_progress_is_brought_to_the_mean_steps_of_the_survivors(instant):
    code, said, text = run({2: (instant, 3)}, strategy=BY_STEPS, steps=18)
    assert code == 0, text
    assert views_of(said)(5) == THREE
    expected = replayed_by_steps(views_of(said), THREE, worker_steps=BY_STEPS.steps_per_round, rounds=6)
    assert own(said) == near(expected), text


@pytest.mark.parametrize("who", [1, 3])
def test_who_joins_where_progress_is_by_steps_has_that_of_its_donor_and_a_step(who):
    code, said, text = run(
        {who: ("before the sum", 3)}, strategy=BY_STEPS, steps=60, restarts=1, back=(who,), waits_at=14
    )
    assert code == 0, text
    expected = replayed_by_steps(
        views_of(said), ALL, worker_steps=BY_STEPS.steps_per_round, rounds=20, joins=joined(text, who)
    )
    assert own(said) == near(expected), text
