"""Quorums at run time: gradients are conserved, replicas stay equal, and NumPy reproduces the logged rounds."""

import itertools
import os
import random
import threading
import time
import warnings
from datetime import timedelta
from functools import partial

import numpy as np
import pytest
import torch

import partreduce
from helpers.quorum_runs import WIDTH, TwoBuckets, make_quorum_case, quorum_problems, replay_steps, run_quorum_case
from helpers.thread_ranks import on_ranks
from partreduce import Cluster, DistributedOptimizer, Schedule, load_checkpoint, save_checkpoint
from partreduce import strategies as st
from partreduce.errors import InputError, PeerFailedError, UnavailableError
from partreduce.planner.predict import ARRAYS
from partreduce.runtime.strategies.quorum import driver as broadcast_tree
from partreduce.runtime.strategies.quorum.driver import GradientSum, StartedRound, children
from partreduce.runtime.strategies.quorum.gradients import read_counts, room_for, write_counts
from partreduce.runtime.transport.mailbox import Mailbox
from partreduce.runtime.transport.nccl import NcclWorld
from partreduce.runtime.transport.tags import tag_of
from partreduce.runtime.transport.waiting import PeerGoneError
from partreduce.schedulers.protocols.partial import Share

RUNS = int(os.environ.get("PARTREDUCE_QUORUM_RUNS", "16"))
"""More: `PARTREDUCE_QUORUM_RUNS=1000 pytest --timeout=3000 tests/runtime/strategies/test_quorum.py -k conserved`."""


def assert_conserved(case, results):
    """Delivered gradients sum to the computed ones, and replicas are equal after each round."""
    assert not quorum_problems(case, results), case
    assert len({tuple(result["rounds"]) for result in results}) == 1, case
    allowed = ARRAYS["quorum"](case.schedule.strategy, case.num_workers) - 1  # which the mean model has
    assert all(result["made"] <= allowed for result in results), case
    exact = not case.sync.synchronize_every
    for result, wanted in zip(results, replay_steps(case, results), strict=True):
        np.testing.assert_allclose(
            result["history"], np.reshape(wanted, (-1, 5)), rtol=0, atol=0 if exact else 1e-4, err_msg=f"{case}"
        )
    if case.sync.missed is st.MissedResultPolicy.LATEST:
        return
    first = results[0]
    for result in results:
        np.testing.assert_array_equal(result["final"], first["final"])
        np.testing.assert_array_equal(result["means"], first["means"])
        assert result["last"] is None or np.array_equal(result["final"], first["final"])
        if case.sync.missed is st.MissedResultPolicy.EACH:
            np.testing.assert_array_equal(result["history"], first["history"])
    np.testing.assert_array_equal(first["final"], -sum(case.made(), np.zeros(5)) / case.num_workers)


@pytest.mark.parametrize("block", range(2))
def test_gradients_are_conserved(ranks, block):
    """Random settings, delays, pauses and slow workers."""
    for seed in range(block * RUNS // 2, (block + 1) * RUNS // 2):
        case = make_quorum_case(seed)
        results = ranks.run(case.num_workers, lambda world, case=case: run_quorum_case(case, world))
        assert_conserved(case, results)


def schedule_of(n, nodes=1, transport=None, **options):
    sync = st.PartialAllReduce(**({"quorum": st.QuorumStart.SOLO} | options))
    return Schedule(
        "quorum", Cluster.regular(nodes, n // nodes), st.AllReduce(sync=sync, transport=transport or st.Transport())
    )


def make_optimizer(world, schedule, make=None, values=(0.0,) * WIDTH, **options):
    model = TwoBuckets(list(values))
    inner = make(model.parameters()) if make else torch.optim.SGD(model.parameters(), lr=1.0)
    return model, inner, DistributedOptimizer(inner, model, schedule, world=world, timeout=60, **options)


def call(model, optimizer, value):
    model.set_gradient(np.full(WIDTH, float(value)))
    optimizer.step()


@pytest.mark.parametrize("count", list(st.LateGradientPolicy))
@pytest.mark.parametrize(("bound", "before"), [(1, 2), (3, 0)])
def test_peers_of_a_stopped_worker_advance_to_its_queue_bound(ranks, bound, before, count):
    """The thread that sums continues: `staleness` results wait for the worker, and the next round does not begin."""
    n = 4
    schedule = schedule_of(n, staleness=bound, count=count)
    stopped, released, far = threading.Event(), threading.Event(), [0] * n
    queued = f"computes a gradient, while {bound} result{'s wait' if bound > 1 else ' waits'} for it"

    def work(world):
        rank = world.rank
        model, _, optimizer = make_optimizer(world, schedule)
        drivers[rank] = optimizer.runner.driver
        for number in range(before + 10):
            if rank == 0 and number == before:
                far[0] = optimizer.round
                stopped.set()
                released.wait(60)
            elif number >= before:
                stopped.wait(60)
            call(model, optimizer, n)
            far[rank] = optimizer.round if rank else far[0]
        optimizer.finish()
        return model.values()

    def watch():
        stopped.wait(60)
        deadline = time.monotonic() + 60
        while max(far[1:]) < far[0] + bound and time.monotonic() < deadline:
            time.sleep(0.01)
        time.sleep(0.3)  # for a worker that would exceed the bound
        seen.append(list(far))
        while messages[-1:] != [queued] and time.monotonic() < deadline:  # the last result may be in flight
            drivers[0].publish_activity(messages.append)
            time.sleep(0.01)
        released.set()

    seen, messages, drivers = [], [], {}
    watching = threading.Thread(target=watch)
    watching.start()
    results = ranks.run(n, work)
    watching.join()
    assert max(seen[0][1:]) == seen[0][0] + bound
    assert messages[-1] == queued
    assert all((values == -n * (before + 10)).all() for values in results)


def test_after_averaging_clips_each_result(ranks):
    """Each result is clipped separately on all workers: replicas stay equal, and steps stay within the bound."""
    n, bound = 3, 0.5
    schedule = schedule_of(n)

    def work(world):
        model, inner, optimizer = make_optimizer(world, schedule)
        history = [model.values()]
        inner.register_step_post_hook(lambda *_: history.append(model.values().copy()))

        def clip():
            torch.nn.utils.clip_grad_norm_([model.wide], bound)

        with optimizer.join(after_averaging=clip):
            for number in range(6):
                time.sleep(0.01 * (world.rank == 1))
                model.set_gradient(np.full(WIDTH, float(number + world.rank)))
                optimizer.average_gradients()
                clip()
                optimizer.step()
        optimizer.finish()
        return np.array(history)

    results = ranks.run(n, work)
    assert all(np.array_equal(history, results[0]) for history in results)
    lengths = np.linalg.norm(np.diff(results[0][:, :3], axis=0), axis=1)
    assert lengths.max() <= bound + 1e-6
    assert np.isclose(lengths, bound, atol=1e-5).any()


def test_partreduce_clipping_keeps_replicas_equal(ranks):
    """Inside join() it runs while results are applied, where it must not call average_gradients()."""

    def work(world):
        model, inner, optimizer = make_optimizer(world, schedule_of(3))
        history = [model.values()]
        inner.register_step_post_hook(lambda *_: history.append(model.values().copy()))
        clip = partial(partreduce.clip_grad_norm_, list(model.parameters()), 0.5)
        with optimizer.join(after_averaging=clip):
            for number in range(3 + world.rank):
                time.sleep(0.005 * (world.rank == 1))
                model.set_gradient(np.full(WIDTH, float(number + 1)))
                clip()
                optimizer.step()
        optimizer.finish()
        return np.array(history)

    results = ranks.run(3, work)
    assert all(np.array_equal(history, results[0]) for history in results)


def step_without_average_gradients(world, model, optimizer):
    with optimizer.join(after_averaging=lambda: None):
        call(model, optimizer, 1)


def finish_without_step(world, model, optimizer):
    model.set_gradient(np.ones(WIDTH))
    optimizer.average_gradients()
    optimizer.finish()


def load_states_of_different_rounds(world, model, optimizer):
    call(model, optimizer, 2)
    with optimizer.mean_model():
        state = optimizer.state_dict()
    optimizer.load_state_dict(state)
    state["partreduce"]["steps"] += world.rank
    optimizer.load_state_dict(state)


def step_by_scaler(world, model, optimizer):
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaler.scale(model.wide.sum() + model.narrow.sum()).backward()
    scaler.unscale_(optimizer)
    optimizer.average_gradients()
    scaler.step(optimizer)


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (step_without_average_gradients, "leave after_averaging out"),
        (finish_without_step, "call step() first"),
        (load_states_of_different_rounds, "take them inside mean_model()"),
        (step_by_scaler, "before a GradScaler's verdict"),
    ],
)
def test_misuse_raises_on_all_workers(ranks, misuse, message):
    def work(world):
        model, _, optimizer = make_optimizer(world, schedule_of(2))
        try:
            misuse(world, model, optimizer)
        finally:
            optimizer.runner.close()

    errors = ranks.run(2, work, catch=InputError)
    assert all(message in str(error) for error in errors)


def test_mean_model_after_differing_calls_raises_with_the_rule(ranks):
    def work(world):
        model, _, optimizer = make_optimizer(world, schedule_of(2))
        for _ in range(1 + world.rank):
            call(model, optimizer, 2)
            with optimizer.mean_model():
                pass
        optimizer.finish()

    errors = ranks.run(2, work, catch=PeerFailedError)
    assert any("after the same number of step() calls" in str(error) for error in errors)
    assert not any("put the training loop into" in str(error) for error in errors)


def test_after_averaging_applies_only_to_its_join(ranks):
    def work(world):
        model, _, optimizer = make_optimizer(world, schedule_of(2))
        with optimizer.join(after_averaging=optimizer.zero_grad):
            pass
        for _ in range(3 + world.rank):
            call(model, optimizer, 2)
        optimizer.finish()
        return model.values()

    assert all((values == -7).all() for values in ranks.run(2, work))


@pytest.mark.parametrize("by_rounds", [False, True])
def test_learning_rates_stepped_per_call_warn(ranks, by_rounds):
    n, schedule = 3, schedule_of(3)

    def work(world):
        model, inner, optimizer = make_optimizer(world, schedule)
        state = lambda: optimizer.runner.driver.state  # noqa: E731 - it changes
        rates = torch.optim.lr_scheduler.ExponentialLR(inner, 0.5)
        with optimizer.join(after_averaging=rates.step if by_rounds else None):
            for number in range(5):
                deadline = time.monotonic() + 60
                while (world.rank, number) == (1, 0) and len(state().results) < 2 and time.monotonic() < deadline:
                    time.sleep(0.001)  # its first call takes several results
                model.set_gradient(np.ones(WIDTH))
                optimizer.average_gradients()
                if by_rounds:
                    rates.step()
                optimizer.step()
                if not by_rounds:
                    rates.step()
        values = model.values()
        optimizer.finish()
        return values

    with warnings.catch_warnings(record=True, action="always") as caught:
        results = ranks.run(n, work)
    message = [str(warning.message) for warning in caught if "different settings" in str(warning.message)]
    assert bool(message) is not by_rounds
    assert all(np.array_equal(values, results[0]) for values in results) is by_rounds


def test_checkpoint_keeps_late_gradients(ranks, tmp_path):
    """Workers of unequal speed save with late gradients; the resumed run applies all of them."""
    n, calls = 3, 5
    schedule = schedule_of(n, staleness=2)

    def work(world, *, resumes):
        model, _, optimizer = make_optimizer(world, schedule, lambda p: torch.optim.SGD(p, lr=1.0, momentum=0.5))
        if resumes:
            assert load_checkpoint(optimizer, tmp_path).round == optimizer.round
        for number in range(calls * resumes, calls * (1 + resumes)):
            time.sleep(0.01 * world.rank)
            call(model, optimizer, (number + 1) * n)
        if not resumes:
            save_checkpoint(optimizer, tmp_path)
        total = optimizer.round, model.values()
        optimizer.finish()
        return total

    first = ranks.run(n, lambda world: work(world, resumes=False))
    second = ranks.run(n, lambda world: work(world, resumes=True))
    for results in (first, second):
        assert len({round_ for round_, _ in results[:1]}) == 1
    assert len({round_ for round_, _ in first}) == 1
    assert all(np.array_equal(values, first[0][1]) for _, values in first)
    assert min(round_ for round_, _ in second) > first[0][0]


@on_ranks(2, [[0, 0, 2], [0, 0, 2]])
def test_communicator_is_reused_only_after_finish(world):
    """A sum that one worker left in flight would pair with the next optimizer's, and gloo would abort the process."""
    lines = []
    for finishes in (True, False, True):
        _, _, optimizer = make_optimizer(world, schedule_of(2))
        lines.append(optimizer.runner.communicator)
        (optimizer.finish if finishes else optimizer.runner.close)()
    return [lines.index(line) for line in lines]


@pytest.mark.parametrize("grace", [20_000_000, 20_000], ids=["long", "short"])
def test_round_waits_for_a_workers_gradient_during_the_grace_period(ranks, grace):
    """Worker 0 begins a second round; its peers call step() a little later, or only after worker 0 has continued."""
    continued = threading.Event()

    def work(world):
        model, _, optimizer = make_optimizer(world, schedule_of(4, grace=grace))
        call(model, optimizer, 0)
        if world.rank:
            assert continued.wait(0.3 if grace > 1e6 else 60) == (grace < 1e6)
        call(model, optimizer, 1)
        if not world.rank:
            continued.set()
        optimizer.finish()
        return [event.numbers for event in optimizer.runner.log.events if event.kind == "finished"]

    found = ranks.run(4, work)
    assert grace < 1e6 or found == [[(1, 1, 1, 1)] * 2] * 4


@pytest.mark.parametrize("seed", range(20))
def test_counts_roundtrip_through_a_sum_and_detect_other_rounds(seed):
    """For any counts, all workers read the counts of every worker from the sum of the arrays."""
    draw = random.Random(seed)
    size = draw.randrange(2, 7)
    shares = [Share(40, tuple(range(draw.choice([0, 1, 2, 500])))) for _ in range(size)]
    passed = [
        GradientSum([torch.full((room_for(size),), 7.0)], is_empty=False, scaled=draw.random() < 0.2)
        for _ in range(size)
    ]
    begun = [StartedRound(3, 40, share, one) for share, one in zip(shares, passed, strict=True)]
    here, there = tag_of("run", 3, 40), tag_of("run", 3, 41)

    def exchange(tags):
        for place, (one, tag) in enumerate(zip(begun, tags, strict=True)):
            write_counts(one, one.payload.arrays[0], tag, place=place, size=size)
        total = torch.stack([one.arrays[0] for one in passed]).sum(0)
        for one in passed:
            one.arrays[0].copy_(total)

    exchange([here] * size)
    for one in begun:
        assert read_counts(one.payload.arrays[0], here, 40, size=size) == (shares, any(one.scaled for one in passed))
    exchange([*[here] * (size - 1), there])
    with pytest.raises(PeerGoneError, match="different rounds"):
        read_counts(passed[0].arrays[0], here, 40, size=size)


def test_broadcast_tree_reaches_each_worker_once():
    for size in (2, 3, 7, 64, 65, 100):
        receivers = [child for place in range(size) for child in children(place, size)]
        assert sorted(receivers) == list(range(1, size))
        depth = {0: 0}
        for place in range(size):
            for number, child in enumerate(children(place, size)):
                depth[child] = depth[place] + 1 + number
        assert max(depth.values()) <= (size - 1).bit_length()


def test_tree_activation_runs_the_same_rounds(ranks, monkeypatch):
    monkeypatch.setattr(broadcast_tree, "DIRECT", 2)
    for seed in itertools.islice((s for s in range(1000, 2000) if make_quorum_case(s).num_workers > 4), 2):
        case = make_quorum_case(seed)
        assert_conserved(case, ranks.run(case.num_workers, lambda world, case=case: run_quorum_case(case, world)))


def test_hierarchical_algorithm_applies_to_partial_sums(ranks):
    schedule = schedule_of(4, nodes=2, transport=st.Transport(algorithm=st.AllReduceAlgorithm.HIERARCHICAL))

    def work(world):
        model, _, optimizer = make_optimizer(world, schedule)
        algorithm = type(optimizer.runner.communicator).__name__
        for number in range(3):
            call(model, optimizer, number)
        optimizer.finish()
        return algorithm, model.values()

    for algorithm, values in ranks.run(4, work):
        assert algorithm == "HierarchicalCommunicator"
        np.testing.assert_array_equal(values, -3)


def test_16_bit_models_carry_counts_in_a_separate_array(ranks):
    """Counts are not exact in 16 bits; late float16 gradients do not overflow before the division."""
    schedule = schedule_of(2)

    def work(world):
        model = torch.nn.Linear(2, 2, bias=False, dtype=torch.float16)
        torch.nn.init.zeros_(model.weight)
        optimizer = DistributedOptimizer(torch.optim.SGD(model.parameters(), lr=1.0), model, schedule, world=world)
        for _ in range(4):
            model.weight.grad = torch.full_like(model.weight, 4096.0)
            optimizer.step()
        optimizer.finish()
        return model.weight.detach().float().numpy()

    for values in ranks.run(2, work):
        np.testing.assert_array_equal(values, -4 * 4096)


def test_failed_construction_on_one_worker_abandons_all_groups(ranks, monkeypatch):
    """Otherwise the next optimizer would use different communicators on the two workers."""
    make = Mailbox.__init__

    def fails(mailbox, store, rank, *given, **options):
        if rank == 1:
            raise UnavailableError("no free port")
        make(mailbox, store, rank, *given, **options)

    monkeypatch.setattr(Mailbox, "__init__", fails)

    def work(world):
        messages = []
        for _ in range(2):
            with pytest.raises(UnavailableError) as caught:
                make_optimizer(world, schedule_of(2))
            messages.append(str(caught.value))
            monkeypatch.setattr(Mailbox, "__init__", make)
        return messages, world.abandoned

    ranks.fresh()
    (first, first_left), (second, second_left) = ranks.run(2, work)
    ranks.fresh()
    assert first_left
    assert second_left
    assert "worker 1" in first[0]
    assert second[0] == "no free port"
    for messages in (first, second):
        assert messages[1] == "group {0,1}: the groups of this run were destroyed after a failure"


@on_ranks(2, [[2.0] * 3] * 2)
def test_nccl_world_provides_a_gloo_world_for_host_memory(world):
    """This needs no device: the NCCL world creates the gloo world from its store."""
    limit, device = timedelta(seconds=20), torch.device("cpu")
    device_world = NcclWorld(world.store, world.rank, world.size, limit, device=device, attempt=2)
    host = device_world.on_host()
    assert host is device_world.on_host()
    numbers = torch.ones(3)
    host.create((0, 1), name="quorum 0").all_reduce(numbers).wait()
    device_world.abandon()
    assert host.abandoned
    return numbers.tolist()
