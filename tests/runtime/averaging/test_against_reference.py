"""After k steps every worker holds what a dense NumPy reference of the same schedule says.

Many ranks run as threads of this process, over the same raw gloo groups as real processes; a smaller number of cases
runs on processes in test_processes.py.
"""

import os
import queue
import threading
from datetime import timedelta

import pytest
import torch
import torch.distributed as dist

from helpers.random_schedules import MAX_WORKERS, make_case, reference, run_case
from partreduce.runtime.averaging import reducer as reduction
from partreduce.runtime.strategies import group_means
from partreduce.runtime.transport.gloo import GlooWorld

CASES = int(os.environ.get("PARTREDUCE_TEST_CASES", "200"))
"""A seeded fault shows within 60; set the variable to 2000 after changes to the runtime."""
BASE = int(os.environ.get("PARTREDUCE_TEST_SEED", "0"))
"""Set the variable for other cases. A failure names its seed."""


class Ranks:
    """A warm pool: one thread per rank; worlds and their groups are made once and used again."""

    def __init__(self) -> None:
        self.stores = {n: dist.HashStore() for n in range(2, MAX_WORKERS + 1)}
        self.tasks = [queue.Queue() for _ in range(MAX_WORKERS)]
        self.answers: queue.Queue = queue.Queue()
        for rank in range(MAX_WORKERS):
            threading.Thread(target=self._work, args=(rank,), daemon=True).start()

    def _work(self, rank: int) -> None:
        worlds: dict[int, GlooWorld] = {}
        for case in iter(self.tasks[rank].get, None):
            n = case.schedule.num_workers
            try:
                if n not in worlds:
                    worlds[n] = GlooWorld(self.stores[n], rank, n, timedelta(seconds=60), max_groups=1000)
                self.answers.put(run_case(case, worlds[n]))
            except BaseException as error:  # noqa: BLE001 - whatever it is, the test shows it
                self.answers.put(f"{case.schedule.name}, worker {rank}: {type(error).__name__}: {error}")

    def run(self, seed: int) -> list[str]:
        case = make_case(seed)
        for rank in range(case.schedule.num_workers):
            self.tasks[rank].put(case)
        answers = [self.answers.get(timeout=100) for _ in range(case.schedule.num_workers)]
        return [answer for answer in answers if answer is not None]


@pytest.fixture(scope="module")
def ranks():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield Ranks()
    torch.set_num_threads(threads)


@pytest.mark.parametrize("part", range(10))
def test_parameters_equal_the_numpy_reference_on_random_schedules(ranks, part):
    size = CASES // 10
    for seed in range(BASE + part * size, BASE + (part + 1) * size):
        assert ranks.run(seed) == [], f"seed {seed}"


def test_parameters_equal_the_reference_when_arrays_go_in_two_pieces(ranks, monkeypatch):
    monkeypatch.setattr(reduction, "SPLIT_BYTES", 0)
    for seed in range(BASE, BASE + 40):
        assert ranks.run(seed) == [], f"seed {seed}"


def test_random_schedules_cover_what_they_claim():
    cases = [make_case(seed) for seed in range(400)]
    strategies = [case.schedule.strategy for case in cases]
    assert {case.schedule.num_workers for case in cases} == set(range(2, MAX_WORKERS + 1))
    assert {case.exact for case in cases} == {True, False}
    assert any(s.overlap for s in strategies)
    assert any(isinstance(s.pace, tuple) and len(set(s.pace)) > 1 for s in strategies)
    assert any(getattr(s, "prologue", 0) for s in strategies)
    assert any(s.averaging == "step-normalised" for s in strategies)
    assert any(getattr(s, "averages_gradients", False) for s in strategies)
    groups = [g for s in strategies if s.kind == "static" for phase in s.phases.phases for g in phase]
    assert any(g.relax != 1 for g in groups)
    assert {len(g.members) for g in groups} >= {2, 3, 4, 5}
    assert any(
        sum(len(g.members) for g in phase) < phase.num_workers
        for s in strategies
        if s.kind == "static"
        for phase in s.phases.phases
    )


def test_exact_cases_make_no_rounding_error():
    """The dyadic cases fit into 53 bits: the float64 reference equals the same computation in long double."""
    for seed in range(0, 200, 2):
        case = make_case(seed)
        wanted, largest = reference(case)
        assert largest < 2**20
        scaled = wanted * 2.0**30
        assert (scaled == scaled.round()).all(), f"seed {seed} leaves less than 3 bits of room"


@pytest.mark.parametrize("fault", ["relax ignored", "overlap applied late", "wrong divisor"])
def test_a_seeded_fault_is_found(ranks, monkeypatch, fault):
    """The comparison above can fail: each fault in the commit is noticed within a few schedules."""
    mean = group_means.commit_mean
    if fault == "relax ignored":
        monkeypatch.setattr(group_means, "commit_mean", lambda b, sums, _relax, ok, **_: mean(b, sums, 1.0, ok))
    elif fault == "overlap applied late":
        monkeypatch.setattr(group_means, "commit_delayed", lambda b, sums, _, relax, ok: mean(b, sums, relax, ok))
    else:
        monkeypatch.setattr(reduction.Reduction, "num_members", property(lambda self: len(self.group.members) + 1))
        monkeypatch.setattr(reduction, "sums_agree", lambda sums, _tag, _k: torch.tensor(True))
    assert any(ranks.run(seed) for seed in range(60))
