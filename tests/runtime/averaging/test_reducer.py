"""The reducer: several operations under way, their arrays, and two threads that share one reducer."""

import threading
from contextlib import suppress

import torch

from partreduce.runtime.averaging.bucket import Bucket
from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.liveness.heartbeat import Heartbeat
from partreduce.runtime.recorder import Recorder
from partreduce.topo.errors import UnavailableError
from partreduce.topo.phase import Group

N = 4
EVERYONE = Group(tuple(range(N)))


def reducer_of(world, tmp_path=None, *, size=32):
    flat = torch.full((size,), float(world.rank + 1), dtype=torch.float64)
    bucket = Bucket(torch.device("cpu"), torch.float64, size, flat, length=size)
    heartbeat = Heartbeat(world.store, world.rank, "reducer", beats=False)
    return Reducer(world, [bucket], Recorder(world.rank, tmp_path), heartbeat, key="reducer", timeout=60)


def prepared(world, groups):
    for group in groups:
        if world.rank in group.members and not world.has(group.members):
            world.create(group.members)


def test_several_operations_are_under_way_and_each_is_committed_from_arrays_of_its_own(ranks):
    def work(world):
        prepared(world, [EVERYONE])
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
    assert ranks.run(N, work) == [(wanted, 3)] * N, "three arrays, used again and again"


def test_two_threads_run_operations_on_two_communicators(ranks, tmp_path):
    """While one averages over everybody, the other does over pairs: sums, tags, reports and arrays stay apart."""
    rounds = 150

    def work(world):
        pair = Group((world.rank // 2 * 2, world.rank // 2 * 2 + 1))
        prepared(world, [pair, EVERYONE])
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
        assert len(reducer.buckets[0]._spare) <= 2, "as many arrays as operations were under way at once"
        return problems

    assert ranks.run(N, work) == [[]] * N


def test_when_one_thread_fails_the_other_learns_it(ranks):
    """Both operations' groups are destroyed at once, no matter which of the two notices first."""

    def work(world):
        pair = Group((world.rank // 2 * 2, world.rank // 2 * 2 + 1))
        prepared(world, [pair, EVERYONE])
        reducer, errors = reducer_of(world), []

        def average(kind, group, most):
            try:
                for number in range(most):
                    reducer.wait(reducer.begin(kind, number, number, group))
            except UnavailableError as error:
                errors.append(error)

        # Worker 0 comes to another operation than the others in its tenth round over all.
        kinds = threading.Thread(target=average, args=("of a pair", pair, 10**6))
        kinds.start()
        average("of all", EVERYONE, 10)
        with suppress(UnavailableError):
            average("of all" if world.rank else "of others", EVERYONE, 1)
        kinds.join(60)
        assert not kinds.is_alive()
        return len(errors)

    assert ranks.run(N, work) == [2] * N
    ranks.fresh()


def test_only_a_wait_that_took_the_timeout_is_reported_with_its_length(ranks):
    """A cut link ends earlier, by the kernel's own limit, which has nearly the same words."""

    def work(world):
        prepared(world, [EVERYONE])
        reducer = reducer_of(world)
        reducer.wait(reduction := reducer.begin("average", 0, 0, EVERYONE))
        errors = ("Read error [10.0.0.2]:4000: Connection timed out", "Timed out waiting 60000ms for recv operation")
        return [reducer._why(reduction.operation, RuntimeError(error)) for error in errors]

    for kernels, ours in ranks.run(N, work):
        assert "for more than" not in kernels
        assert "for more than 60 s (Timed out" in ours
