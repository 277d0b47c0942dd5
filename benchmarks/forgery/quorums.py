"""Whether claims about rounds that a quorum starts are true: by playing its rules against one worker that computes.

Shares nothing with prover or checker: counts of rounds, results and gradients, moved by hand.
"""

from __future__ import annotations

from typing import Any

from benchmarks.forgery.dense import Document, sync_of

LONG = 1000
"""Rounds after which a gradient that is still late has no bound."""
USUAL = {"count": "open-round", "missed": "each", "staleness": 4, "synchronize_every": 0}


def quorum_of(raw: Document) -> dict[str, Any] | None:
    """The members of a quorum with their defaults, None where there is none."""
    quorum = sync_of(raw, "partial")
    return None if quorum is None else USUAL | quorum


def is_true(entry: Document, quorum: dict[str, Any], n: int) -> bool:
    """Whether what an entry says of such rounds is true; numbers may be weaker than they need be."""
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
    """The age of a gradient whose worker computes for as long as others can start rounds; None without an end.

    Its computing begins right after a synchronization, or with all results taken: then most rounds can pass.
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
    """Whether two workers, of which one misses results, agree after every so many rounds."""
    if quorum["missed"] == "latest":
        synchronized = quorum["synchronize_every"]
        return of == "models" and synchronized > 0 and every > 0 and every % synchronized == 0
    # Results that are added up first are rounded otherwise.
    return of == "gradients" and quorum["missed"] == "each" and every >= 1
