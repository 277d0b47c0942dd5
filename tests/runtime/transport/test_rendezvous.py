"""Workers that torchrun started together agree on the name of their attempt, even if the store holds old entries."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import HashStore

from partreduce.errors import UnavailableError
from partreduce.runtime.transport.rendezvous import AT, agreed_attempt, may_be_started_again

PLENTY = timedelta(seconds=60)


def agree_on_attempt(store, size):
    """The attempt names on which `size` workers agree."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: agreed_attempt(store, rank, size, PLENTY), range(size)))


def test_workers_agree_on_a_new_attempt_name_at_each_start():
    store = HashStore()
    first, second, fewer = agree_on_attempt(store, 3), agree_on_attempt(store, 3), agree_on_attempt(store, 2)
    assert [len(set(names)) for names in (first, second, fewer)] == [1, 1, 1]
    assert len({first[0], second[0], fewer[0]}) == 3


def test_stale_question_of_a_dead_worker_is_ignored():
    store = HashStore()
    store.set(f"{AT}/asked/1", "of a dead worker")
    names = agree_on_attempt(store, 2)
    assert names[0] == names[1]


@pytest.mark.parametrize("rank", [0, 1])
def test_missing_worker_is_named(rank):
    with pytest.raises(UnavailableError, match=rf"worker {1 - rank} did not come within 0\.2 s"):
        agreed_attempt(HashStore(), rank, 2, timedelta(seconds=0.2))


@pytest.mark.parametrize(
    ("variables", "may_be"),
    [
        ({}, False),
        ({"TORCHELASTIC_RUN_ID": "1"}, False),
        ({"TORCHELASTIC_RUN_ID": "1", "TORCHELASTIC_MAX_RESTARTS": "0"}, False),
        ({"TORCHELASTIC_MAX_RESTARTS": "3"}, False),
        ({"TORCHELASTIC_RUN_ID": "1", "TORCHELASTIC_MAX_RESTARTS": "3"}, True),
    ],
)
def test_only_an_elastic_agent_with_restarts_may_restart_workers(monkeypatch, variables, may_be):
    for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert may_be_started_again() is may_be
