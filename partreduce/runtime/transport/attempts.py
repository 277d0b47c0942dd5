"""Attempts: torchrun starts workers again at a store that remembers the attempt before; worker 0 names the present one.

Its agents count restarts each for itself, and a node whose workers are ended for those of another counts none, so the
number that a worker is given is no name. Each worker asks with a word that nobody else has, and worker 0 answers. It
asks for all, since a worker that died with the attempt before may have left its question.
"""

from __future__ import annotations

import os
import secrets
import time
from datetime import timedelta

from partreduce.runtime.environment import AGENT_MAX_RESTARTS, RUN_ID
from partreduce.runtime.transport.torch_api import Store
from partreduce.runtime.transport.waiting import Deadline
from partreduce.topo.errors import UnavailableError

LOOK_SECONDS = 0.02
AT = "partreduce/attempts"


def may_be_started_again() -> bool:
    """Whether torchrun starts the workers of those nodes again that are left after a failure (`--max-restarts`)."""
    return RUN_ID in os.environ and os.environ.get(AGENT_MAX_RESTARTS, "0") != "0"


def agreed_attempt(store: Store, rank: int, size: int, timeout: timedelta) -> str:
    """The name of this attempt, the same on all workers that were started together.

    Raises:
        UnavailableError: a worker did not come within the timeout.
    """
    if rank:
        word = secrets.token_hex(16)
        store.set(f"{AT}/asked/{rank}", word)
        try:
            store.wait([f"{AT}/answer/{word}"], timeout)
        except RuntimeError:
            raise UnavailableError(
                f"worker 0 did not come within {timeout.total_seconds():g} s after torchrun started the workers"
            ) from None
        name = store.get(f"{AT}/answer/{word}").decode()
        store.set(f"{AT}/{name}/came/{rank}", "1")
        return name
    name, missing = str(store.add(f"{AT}/number", 1)), set(range(1, size))
    deadline, answered = Deadline(timeout.total_seconds()), dict[int, str]()
    while missing:
        for other in sorted(missing):
            if store.check([f"{AT}/{name}/came/{other}"]):
                missing.remove(other)
            elif store.check([f"{AT}/asked/{other}"]):
                word = store.get(f"{AT}/asked/{other}").decode()
                if answered.get(other) != word:
                    store.set(f"{AT}/answer/{word}", name)
                    answered[other] = word
        if missing and deadline.is_over:
            raise UnavailableError(
                f"worker {min(missing)} did not come within {timeout.total_seconds():g} s after torchrun started the "
                "workers"
            )
        time.sleep(LOOK_SECONDS if missing else 0)
    return name
