"""Fragments in turns, as in Streaming DiLoCo: their order, checkpoints, limits and failures."""

import random
from itertools import pairwise

import pytest
import torch

from helpers.thread_ranks import on_ranks
from helpers.training import Training, group_phases
from partreduce import Cluster, Schedule, ScheduleAverager, save_checkpoint
from partreduce import strategies as st
from partreduce.errors import InputError, PeerFailedError, ScheduleError
from partreduce.topo.strategies.payload import assign, moves, round_ends

DILOCO = st.OuterStep(lr=0.7, momentum=0.9, nesterov=True)
CROWDED = st.AllReduce(
    steps_per_round=6, sync=st.DelayedMerge(steps=5, alpha="1/2"), payload=st.Payload(outer=DILOCO, fragments=3)
)
"""Turns end after 2, 4 and 6 of 6 steps and merge what was sent after 3, 5 and 1: up to three are in flight."""
WHOLE = st.AllReduce(steps_per_round=5, payload=st.Payload(outer=DILOCO))
STREAMING = st.AllReduce(
    steps_per_round=7, sync=st.DelayedMerge(steps=1, alpha="1/2"), payload=st.Payload(outer=DILOCO, fragments=3)
)


@on_ranks(3, fresh=True)
def test_checkpoint_inside_a_round_of_unequal_steps_raises(world, tmp_path):
    training = Training(world, st.AllReduce(steps_per_round=(4, 5, 6), payload=st.Payload(outer=DILOCO, fragments=2)))
    training.steps(1)
    with pytest.raises(InputError, match=r"step 1 lies inside a round of \d steps"):
        save_checkpoint(training.optimizer, tmp_path)


@pytest.mark.filterwarnings("ignore:partreduce. step .. model.state_dict.. holds worker")
def test_loading_only_the_model_with_a_fragment_in_flight_raises(ranks):
    plain = st.AllReduce(steps_per_round=4, sync=st.DelayedMerge(steps=2))

    def work(world):
        training = Training(world, plain)
        training.steps(3)
        training.model.load_state_dict(training.model.state_dict())
        with pytest.raises(InputError, match="would send the difference to the others as progress"):
            training.steps(1)
        return True

    assert all(ranks.run(3, work))


def test_fragments_are_averaged_in_one_order_without_overlap(ranks):
    def work(world):
        training = Training(world, STREAMING)
        training.steps(14)
        done = training.optimizer.run.reducer.recorder.last()
        return [(one.kind, one.step, one.round, one.start, one.end) for one in done if "fragment" in one.kind]

    turns = [(round_, number, step) for round_ in (0, 1) for number, step in enumerate((0, 2, 5))]
    expected = [(f"average of fragment {number}", 7 * round_ + step, round_) for round_, number, step in turns]
    for done in ranks.run(3, work):
        assert [one[:3] for one in done] == expected
        assert all(first[4] <= second[3] for first, second in pairwise(done))


def test_fragments_in_flight_follow_their_turns(ranks):
    """Fragments are sent in one order; the first round merges only fragment 2, the only one sent in time."""

    def work(world):
        training, flying = Training(world, CROWDED), []
        for _ in range(18):
            training.steps(1)
            kept = training.optimizer.runner.state()
            flying.append({int(name[0]) for name in kept if "flight" in name})
        done = training.optimizer.run.reducer.recorder.last()
        return flying, [(one.kind[-1], one.step, one.round) for one in done if "fragment" in one.kind]

    first = [{2}, {2}, {0, 2}, {0, 2}, {0, 1, 2}, {0, 1}]
    later = [{0, 1, 2}, {1, 2}, {0, 1, 2}, {0, 2}, {0, 1, 2}, {0, 1}]
    sent = [
        (str(number), 6 * round_ + step, round_) for round_ in range(3) for number, step in ((2, 0), (0, 2), (1, 4))
    ]
    for flying, order in ranks.run(3, work):
        assert flying == first + later + later
        assert order == sent


LATE_TURNS = st.AllReduce(
    steps_per_round=8, sync=st.DelayedMerge(steps=2), payload=st.Payload(outer=DILOCO, fragments=2)
)
"""The first turn sends after step 2 and merges after step 4: only a worker that fails in between has sent."""


@pytest.mark.parametrize(("strategy", "begun", "taken"), [(LATE_TURNS, 1, 2), (LATE_TURNS, 1, 3), (WHOLE, 6, 2)])
def test_lost_worker_is_named_before_an_average_and_in_flight(ranks, strategy, begun, taken):
    """A worker lost before the average also leaves the outer state unchanged."""

    def work(world):
        training = Training(world, strategy, timeout=60)
        training.steps(begun)
        before = {name: tensor.clone() for name, tensor in training.optimizer.runner.state().items()}
        if world.rank == 2:
            training.steps(taken - 2)
            training.optimizer.runner.close(failed=True)
            training.optimizer.ending.after(PeerFailedError("worker 2 gives up"))
            return "gone"
        with pytest.raises(PeerFailedError) as caught:
            training.steps(7)
        after = training.optimizer.runner.state() if taken == 2 else before
        assert all(torch.equal(before[name], after[name]) for name in before)
        return str(caught.value)

    texts = ranks.run(3, work)
    ranks.fresh()
    assert all("worker 2" in text and "\n" not in text for text in texts[:2]), texts


def names(count):
    return [((f"{layer}.{kind}",), size) for layer in range(count) for kind, size in (("weight", 8), ("bias", 2))]


@pytest.mark.parametrize("seed", range(30))
def test_assign_keeps_layers_whole_and_minimizes_the_largest_fragment(seed):
    draw = random.Random(seed)
    layers = draw.randint(1, 7)
    parameters = [((f"m.{layer}.{part}",), draw.randint(1, 30)) for layer in range(layers) for part in range(2)]
    count = draw.randint(1, layers)
    got = assign(count, parameters)
    assert got == sorted(got)
    assert set(got) == set(range(count))
    assert got[::2] == got[1::2]
    sizes = [sum(size for its, (_, size) in zip(got, parameters, strict=True) if its == one) for one in range(count)]
    whole = [a[1] + b[1] for a, b in zip(parameters[::2], parameters[1::2], strict=True)]

    def best(start, left):
        if left == 1:
            return sum(whole[start:])
        return min(max(sum(whole[start:end]), best(end, left - 1)) for end in range(start + 1, layers - left + 2))

    assert max(sizes) == best(0, count)


def test_gaps_between_turns_differ_by_at_most_one_step_and_the_last_ends_the_round():
    for steps_per_round in range(1, 60):
        for count in range(1, steps_per_round + 1):
            ends = round_ends(count, steps_per_round)
            assert len(ends) == count
            assert ends[-1] == steps_per_round
            gaps = [after - before for before, after in zip((0, *ends), ends, strict=False)]
            assert min(gaps) == steps_per_round // count >= 1
            assert max(gaps) <= -(-steps_per_round // count)
    assert round_ends(19, 36)[:3] == (1, 3, 5), "MaxText's 36 steps in 19 turns, each once"


@pytest.mark.parametrize("most_steps", [12, pytest.param(24, marks=pytest.mark.slow)])
def test_moves_match_the_turns_and_the_claimed_number_in_flight(most_steps):
    for steps_per_round, count in [(most, count) for most in range(1, most_steps + 1) for count in range(1, most + 1)]:
        for late in range(steps_per_round):
            listed = moves(count, steps_per_round, late)
            flying, worst, sent, merged = [], 0, [], []
            for step in range(1, 4 * steps_per_round + 1):
                for move in listed:
                    if move.taken != (step - 1) % steps_per_round + 1:
                        continue
                    if not move.merges:
                        flying.append(move.fragment)
                        sent.append((step, move.fragment))
                    elif move.fragment in flying:
                        assert flying.pop(0) == move.fragment, "merged in the order in which they are sent"
                        merged.append((step, move.fragment))
                    worst = max(worst, len(flying))
            turns = [
                (end + round_ * steps_per_round, p)
                for round_ in range(5)
                for p, end in enumerate(round_ends(count, steps_per_round))
            ]
            assert sent == [(end - late, p) for end, p in turns if 0 < end - late <= 4 * steps_per_round]
            assert merged == [(end, p) for end, p in turns if late < end <= 4 * steps_per_round]
            assert len({step for step, _ in sent}) == len(sent), "at most one per step"
            assert worst == max(1, -(-late * count // steps_per_round))


def test_parameter_in_no_fragment_or_in_two_raises_with_its_name():
    for patterns, words in {
        (("0.*",), ("1.weight",)): "parameter '1.bias' is in no fragment",
        (("0.*",), ("1.*", "*.bias")): "parameter '0.bias' is in fragments 0 ('0.*') and 1 ('*.bias')",
        (("0.*",), ("1.*",), ("head.*",)): "has no parameter for payload.fragments[2] of the schedule (head.*)",
    }.items():
        with pytest.raises(InputError) as caught:
            assign(patterns, names(2))
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="has 2 layers with parameters, fewer than the 3 fragments"):
        assign(3, names(2))
    assert assign((("0.*",), ("1.*", "tied")), [*names(2), (("x", "tied"), 3)]) == [0, 0, 1, 1, 1]
    with pytest.raises(InputError, match="parameter 'x' is in fragments 0"):
        assign((("0.*", "x"), ("1.*", "tied")), [*names(2), (("x", "tied"), 3)])


def test_unsupported_fragments_raise_in_one_line(ranks):
    everyone = group_phases(3, [range(3)])
    two = st.Payload(fragments=2)
    refused = {
        "payload.fragments: are 2; outer steps from each worker's own outer parameters": st.StaticGroups(
            phases=everyone,
            steps_per_round=2,
            payload=st.Payload(fragments=2, outer=st.OuterStep(lr="1/2", outer_params=st.OuterParams.PER_WORKER)),
        ),
        "payload.fragments: are 2; sync.delay is for whole models;": st.StaticGroups(
            phases=everyone, steps_per_round=2, sync=st.DelayedAveraging(), payload=two
        ),
        "payload.fragments: are 2; strategy 'server' averages": st.Server(hosts=(0,), steps_per_round=2, payload=two),
        "payload.fragments: are 2; sync.delay is for whole models": st.AllReduce(
            steps_per_round=2, sync=st.DelayedAveraging(), payload=two
        ),
        "payload.fragments: 2 fragments need at least 2 steps per round, and a worker has 1": st.AllReduce(payload=two),
        "payload.fragments: 2 fragments need at least 2 steps": st.AllReduce(steps_per_round=(2, 1, 4), payload=two),
        "sync.merge: goes with the same steps_per_round for all workers": st.AllReduce(
            steps_per_round=(4, 3, 4), sync=st.DelayedMerge(steps=1)
        ),
        "sync.merge: goes with plain means": st.AllReduce(
            steps_per_round=4, sync=st.DelayedMerge(steps=1), averaging=st.Averaging.STEP_NORMALIZED
        ),
        "sync.merge.steps: is 5; what is averaged every 5 steps": st.AllReduce(
            steps_per_round=5, sync=st.DelayedMerge(steps=5), payload=two
        ),
        "sync.merge.steps: is 1; what is averaged every 1 steps": st.AllReduce(sync=st.DelayedMerge(steps=1)),
        "sync.merge.alpha: is 1; a worker keeps at least 0": st.AllReduce(
            steps_per_round=2, sync=st.DelayedMerge(alpha=1)
        ),
        "which is synchronous; leave it out": st.AllReduce(steps_per_round=2, sync=st.DelayedMerge()),
        "sync: strategy 'static' has no merging inside a round": st.StaticGroups(
            phases=everyone, steps_per_round=2, sync=st.DelayedMerge(steps=1)
        ),
        "outer.lr: is 5; with alpha 9/10 and this momentum outer parameters and models diverge from a rate of 19/9": (
            st.AllReduce(
                steps_per_round=2, sync=st.DelayedMerge(alpha=0.9), payload=st.Payload(outer=st.OuterStep(lr=5))
            )
        ),
    }
    for words, strategy in refused.items():
        with pytest.raises(ScheduleError) as caught:
            Schedule("refused", Cluster.regular(1, 3), strategy)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(ScheduleError, match=r"sync\.merge\.alpha: is 'half'; it is a number such as 0\.7"):
        st.DelayedMerge(alpha="half")

    def work(world):
        texts = []
        for strategy, options in (
            (st.AllReduce(steps_per_round=8, payload=st.Payload(fragments=5)), {}),
            (STREAMING, {"initial": "keep"}),
            (STREAMING, {"optimizer_state": "average"}),
        ):
            with pytest.raises(InputError) as caught:
                Training(world, strategy, **options)
            texts.append(str(caught.value))
        schedule = Schedule("streaming", Cluster.regular(1, 3), st.AllReduce(steps_per_round=4, payload=two))
        with pytest.raises(InputError) as caught:
            ScheduleAverager(schedule, world=world)
        return [*texts, str(caught.value)]

    for layers, keep, states, averager in ranks.run(3, work):
        assert "has 4 layers with parameters, fewer than the 5 fragments" in layers
        assert "measures what workers moved since they were equal" in keep
        assert "optimizer_state='average': cannot be delayed" in states
        assert "2 fragments in turn) needs" in averager


@pytest.mark.parametrize("nesterov", [False, True])
def test_divergence_limit_of_the_outer_rate_is_exact(nesterov):
    """The linear map of (mean - outer parameters, momentum) has spectral radius 1 at the limit."""
    draw = random.Random(nesterov)
    for _ in range(200):
        share, factor = draw.randint(1, 9) / 10, draw.randint(0, 9) / 10
        ahead = nesterov and factor > 0
        limit = (1 + share) * (1 + factor) / (share * (1 + 2 * factor * ahead))
        for rate, apart in ((limit * 0.999, False), (limit * 1.001, True)):
            momentum_first = 1 + factor if ahead else 1
            matrix = torch.tensor(
                [[share * (1 - rate * momentum_first), -share * rate * (factor**2 if ahead else factor)], [1, factor]]
            )
            assert (float(torch.linalg.eigvals(matrix.double()).abs().max()) > 1) is apart
