"""Decides whether claims about rounds with a quorum are true: by its rules, against one worker that computes for long.

It shares nothing with prover or checker, and only counts rounds, results and gradients.
"""

from __future__ import annotations

from typing import Any

from benchmarks.forgery.dense import Document, sync_of

LONG = 1000
"""Rounds after which a gradient that is still missing counts as unbounded."""
USUAL = {"count": "open-round", "missed": "each", "staleness": 4, "synchronize_every": 0}


def quorum_of(raw: Document) -> dict[str, Any] | None:
    """Return the members of a quorum with defaults, None without one."""
    quorum = sync_of(raw, "partial")
    return None if quorum is None else USUAL | quorum


def is_true(entry: Document, quorum: dict[str, Any], n: int) -> bool:
    """Return whether an entry about a quorum is true; bounds may be weaker than necessary."""
    name = entry["claim"]
    if name == "conservation":
        return True
    if name == "deadlock-free":
        # With one worker that never comes rounds continue until its queue is full: all others must be enough.
        return not isinstance(quorum["quorum"], int) or quorum["quorum"] < n
    if name == "staleness":
        oldest = _oldest(quorum)
        return oldest is not None and oldest <= entry["rounds"]
    if name == "equal-replicas":
        return _are_equal(quorum, entry["every"], entry["of"])
    return False


def _oldest(quorum: dict[str, Any]) -> int | None:
    """Return the age of a gradient whose worker computes for as long as others can start rounds; None if unbounded.

    It starts computing right after a synchronization, or with all results taken, when most rounds are possible.
    """
    latest, every = quorum["missed"] == "latest", quorum["synchronize_every"]
    version = entered = 0
    while entered < LONG:
        waiting = entered - version
        if not latest and waiting >= quorum["staleness"]:
            break
        if latest and every and entered > version and entered % every == 0:
            break
        entered += 1
    return None if entered >= LONG else entered - version  # it calls now, and the next round has its gradient


def _are_equal(quorum: dict[str, Any], every: int, of: str) -> bool:
    """Return whether two workers, one of which misses results, agree after every so many rounds."""
    if quorum["missed"] == "latest":
        synchronized = quorum["synchronize_every"]
        return of == "models" and synchronized > 0 and every > 0 and every % synchronized == 0
    # Results that are added up first are rounded otherwise.
    return of == "gradients" and quorum["missed"] == "each" and every >= 1
