"""The reducer: concurrent operations, their arrays, and two threads that share one reducer."""

import threading
import time
from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch

import partreduce
from helpers.thread_ranks import on_ranks
from helpers.training import static_groups, wrap
from helpers.waiting import until
from partreduce.errors import InputError, PeerFailedError, UnavailableError
from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.averaging.in_flight import FixedMembership, Flight
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.recorder import Recorder
from partreduce.strategies import Group

N = 4
EVERYONE = Group(tuple(range(N)))


def reducer_of(world, tmp_path=None, *, size=32):
    flat = torch.full((size,), float(world.rank + 1), dtype=torch.float64)
    bucket = Bucket(torch.device("cpu"), torch.float64, size, flat, length=size)
    heartbeat = Heartbeat(world.store, world.rank, "reducer", beats=False)
    return Reducer(world, [bucket], Recorder(world.rank, tmp_path), heartbeat, key="reducer", timeout=60)


def make_groups(world, groups):
    for group in groups:
        if world.rank in group.members and not world.has(group.members):
            world.create(group.members)


def test_concurrent_operations_use_separate_arrays(ranks):
    def work(world):
        make_groups(world, [EVERYONE])
        reducer = reducer_of(world)
        (bucket,) = reducer.buckets
        seen, arrays = [], set()
        for step in range(0, 12, 3):
            running = []
            for number in range(step, step + 3):
                bucket.flat.fill_(float(N * (world.rank + number)))
                running.append(reducer.begin("average", number, number, EVERYONE))
                arrays.add(running[-1].arrays[0].data_ptr())
            for reduction in reversed(running):
                reducer.wait(reduction)
                reducer.commit(
                    reduction, lambda _, one, sums, ok: seen.append((sums[: one.size].unique().tolist(), ok))
                )
                assert reduction.arrays == []
        return seen, len(arrays)

    order = [number for step in range(0, 12, 3) for number in (step + 2, step + 1, step)]
    wanted = [([float(N * number + sum(range(N)))], None) for number in order]
    assert ranks.run(N, work) == [(wanted, 3)] * N, "three arrays, reused"


@on_ranks(N, [[]] * N)
def test_two_threads_run_operations_on_two_communicators(world, tmp_path):
    """One thread averages over all workers, the other over pairs: sums, tags, reports and arrays stay separate."""
    rounds = 150
    pair = Group((world.rank // 2 * 2, world.rank // 2 * 2 + 1))
    make_groups(world, [pair, EVERYONE])
    reducer = reducer_of(world, tmp_path)
    problems = []

    def average(kind, group):
        wanted = sum(member + 1 for member in group.members) / len(group.members)

        def look(_index, bucket, sums, _ok):
            if not (sums[: bucket.size] == wanted).all():
                problems.append((kind, sums.unique()))

        try:
            for number in range(rounds):
                reduction = reducer.begin(kind, number, number, group)
                reducer.wait(reduction)
                reducer.commit(reduction, look)
        except UnavailableError as error:
            problems.append((kind, error))

    threads = [threading.Thread(target=average, args=one) for one in (("of all", EVERYONE), ("of a pair", pair))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    operations = reducer.recorder.last()
    assert [operation.index for operation in operations] == list(range(2 * rounds - len(operations), 2 * rounds))
    assert {operation.outcome for operation in operations} == {"ok"}
    assert len(reducer.recorder._events) == 2 * rounds
    assert len(reducer.buckets[0]._spare) <= 2, "as many arrays as concurrent operations"
    return problems


@on_ranks(N, [2] * N, fresh=True)
def test_failure_in_one_thread_fails_the_other(world):
    """Both operations' groups are destroyed at once, no matter which of the two notices first."""
    pair = Group((world.rank // 2 * 2, world.rank // 2 * 2 + 1))
    make_groups(world, [pair, EVERYONE])
    reducer, errors = reducer_of(world), []

    def average(kind, group, most):
        try:
            for number in range(most):
                reducer.wait(reducer.begin(kind, number, number, group))
        except UnavailableError as error:
            errors.append(error)

    # In the last operation over all workers, worker 0 starts another kind than its peers.
    kinds = threading.Thread(target=average, args=("of a pair", pair, 10**6))
    kinds.start()
    average("of all", EVERYONE, 10)
    with suppress(UnavailableError):
        average("of all" if world.rank else "of others", EVERYONE, 1)
    kinds.join(60)
    assert not kinds.is_alive()
    return len(errors)


@on_ranks(N)
def test_only_an_expired_timeout_is_reported_with_its_seconds(world):
    """A lost link fails earlier, by the kernel's limit, with a similar message."""
    make_groups(world, [EVERYONE])
    reducer = reducer_of(world)
    reducer.wait(reduction := reducer.begin("average", 0, 0, EVERYONE))
    errors = ("Read error [10.0.0.2]:4000: Connection timed out", "Timed out waiting 60000ms for recv operation")
    kernels, ours = [reducer._why(reduction.operation, RuntimeError(error)) for error in errors]
    assert "for more than" not in kernels
    assert "for more than 60 s (Timed out" in ours


# The queue of operations in flight: which errors end a wait, and which operations stay in the queue.


BOTH = Group((0, 1))


def make_flight(*outcomes, turn=1):
    """An operation whose successive waits raise the outcomes and then succeed, and the list of calls made to it."""
    done, left = [], list(outcomes)

    def wait(_):
        if left and (outcome := left.pop(0)) is not None:
            raise outcome
        done.append("waited")

    def start(_flight, group):
        done.append(f"began {group}")
        return [(SimpleNamespace(wait=wait), SimpleNamespace(release=lambda: done.append("released")))]

    return Flight(turn=turn, step=0, round=0, start=start, group=BOTH), done


def test_synchronous_operation_starts_in_wait_and_is_never_queued():
    membership, (flight, done) = FixedMembership((0, 1)), make_flight()
    assert membership.wait(flight) is flight
    assert done == ["began {0,1}", "waited"]
    assert not membership.flights


def test_operation_of_an_idle_worker_has_no_sums():
    membership, (flight, done) = FixedMembership((0, 1)), make_flight()
    flight.group = None
    membership.begin(flight)
    assert not membership.wait(flight).sums
    assert not done
    assert not membership.flights


@pytest.mark.parametrize("error", [KeyboardInterrupt(), PeerFailedError("gone")])
def test_interrupted_settle_keeps_the_operation_in_flight(error):
    membership, (flight, done) = FixedMembership((0, 1)), make_flight(error)
    membership.begin(flight)
    with pytest.raises(type(error)):
        membership.settle()
    membership.settle()
    membership.settle()
    assert list(membership.flights) == [flight]
    assert done == ["began {0,1}", "waited"], "once"


def test_operation_rejected_by_all_members_leaves_the_queue():
    membership, (flight, _) = FixedMembership((0, 1)), make_flight(InputError("settings differ"))
    membership.begin(flight)
    with pytest.raises(InputError):
        membership.arrive(flight)
    assert not membership.flights


def test_operation_that_fails_to_start_is_not_queued():
    membership = FixedMembership((0, 1))
    flight = Flight(turn=1, step=0, round=0, start=lambda *_: 1 / 0, group=BOTH)
    with pytest.raises(ZeroDivisionError):
        membership.begin(flight)
    assert not membership.flights


def test_drop_waits_for_all_operations_and_releases_their_arrays():
    membership, both = FixedMembership((0, 1)), [make_flight(turn=turn) for turn in (1, 2)]
    for flight, _ in both:
        membership.begin(flight)
    membership.drop()
    assert [done for _, done in both] == [["began {0,1}", "waited", "released"]] * 2
    assert not membership.flights


# Exchanges of a gathering: each has its own answers.


PAIRS = static_groups(4, [[0, 1], [2, 3]])


def make_linear(world, num_workers, strategy):
    model = torch.nn.Linear(1, 1, bias=False)
    return model, wrap(world, model, strategy)


def test_exchanges_of_one_gathering_and_of_the_next_stay_separate(ranks):
    """A fast worker reaches the second exchange while the slow worker's text of the first is still in the store."""
    hearts = {}

    def run(world):
        _, optimizer = make_linear(world, 2, static_groups(2, [[0, 1]]))
        heartbeat = hearts[world.rank] = optimizer.run.reducer.heartbeat
        answers = []
        for gathering in range(2):
            with heartbeat.gathering("a meeting", 0):
                for what in ("first place", "second place"):
                    if world.rank == 1 and answers:
                        until(lambda what=what: what in hearts[0].last[0])
                        time.sleep(0.05)  # rank 0 reads the store
                    answers.append(optimizer.meeting.exchange(what, {"messages": [gathering, what, world.rank]}))
        optimizer.finish()
        return answers

    expected = [
        [{"messages": [gathering, what, rank]} for rank in range(2)]
        for gathering in range(2)
        for what in ("first place", "second place")
    ]
    assert ranks.run(2, run) == [expected] * 2


def test_checkpoint_after_differing_rounds_raises_on_all_workers(ranks, tmp_path):
    """Two pairs that never wait for each other may call it after different numbers of rounds."""

    def run(world):
        model, optimizer = make_linear(world, 4, PAIRS)
        for _ in range(3 if world.rank < 2 else 1):
            model(torch.ones(1, 1)).sum().backward()
            optimizer.step()
        partreduce.save_checkpoint(optimizer, tmp_path)

    errors = ranks.run(4, run, catch=InputError)
    assert {str(error) for error in errors} == {
        "save_checkpoint: workers came after 1, 3 rounds; all call it after the same one"
    }
    assert not list(tmp_path.iterdir())
