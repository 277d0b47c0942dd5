"""Whether claims about rounds that a quorum starts are true: by playing its rules against one worker that computes.

Shares nothing with prover or checker: counts of rounds, results and gradients, moved by hand; of groups also models,
which come in an order that is drawn.
"""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.forgery.dense import Document, Groups, Matrix

LONG = 1000
"""Rounds after which a gradient that is still late has no bound."""
USUAL = {"count": "open-round", "missed": "each", "staleness": 4, "synchronise_every": 0}


def quorum_of(raw: Document) -> dict[str, Any] | None:
    """The members of a quorum with their defaults, None where there is none."""
    when = raw["strategy"].get("when")
    return USUAL | when["quorum"] if isinstance(when, dict) and "quorum" in when else None


def is_true(entry: Document, quorum: dict[str, Any], n: int) -> bool:
    """Whether what an entry says of such rounds is true; numbers may be weaker than they need be."""
    name = entry["claim"]
    needed = quorum["quorum"] if isinstance(quorum["quorum"], int) else 1
    if name in ("rounds-in-order", "conservation"):
        return True
    if name == "deadlock-free":
        # With one worker that never comes rounds go on until its queue is full: all others must be enough.
        return bool(entry["needed"] == needed < n)
    if name == "quorum":
        return bool(entry["at_least"] <= needed)
    if name == "staleness":
        oldest = _oldest(quorum)
        return oldest is not None and oldest <= entry["rounds"]
    if name == "equal-replicas":
        return _are_equal(quorum, entry["every"], entry["of"])
    return False


OF_GROUPS = ("rounds-in-order", "deadlock-free", "quorum", "conservation", "mean-preserved", "staleness")
"""Claims about groups that a quorum starts, beside those about their matrices."""


def is_true_of_groups(entry: Document, raw: Document, listed: Groups, matrices: list[Matrix]) -> bool:
    """The same of a schedule whose groups start by a quorum each."""
    quorum, name, n = quorum_of(raw), entry["claim"], len(matrices[0])
    assert quorum is not None, "asked before"
    assert listed is not None, "a schedule of groups"
    asked = quorum["quorum"] if isinstance(quorum["quorum"], int) else 1
    groups = [[set(members) for members, _ in phase] for phase in listed]
    first = [[set(range(n))]] * min(1, raw["strategy"].get("prologue", 0))
    if name == "deadlock-free":
        # In no group all members may be asked for where it has more than are asked for, nor more than there are.
        sizes = {len(group) for phase in (*first, *groups) for group in phase}
        return {(size, needed) for size, needed in entry["needed"]} == {(size, min(asked, size)) for size in sizes}
    if name == "quorum":
        return bool(entry["at_least"] <= asked)
    if name == "staleness":
        oldest = _oldest(quorum)
        return oldest is not None and oldest <= entry["rounds"]
    carried, mean, left = _played([*first, *groups * 2], [matrices[0] * 0 + 1 / n] * len(first) + matrices * 2, n)
    if name == "rounds-in-order":
        return carried
    if name == "conservation":
        return not left
    return mean


def _played(rounds: list[list[set[int]]], matrices: list[Matrix], n: int) -> tuple[bool, bool, int]:
    """Rounds whose members enter in an order that is drawn, with what each has published by then.

    Returns whether each carried all of them out, whether their mean is what was published, and what none had.
    """
    draw = random.Random(f"{n} {rounds}")
    models, published, waiting, largest = [0.0] * n, 0.0, [0.0] * n, 1.0
    entered: list[dict[int, float]] = [{} for _ in rounds]
    at = [0] * n  # the round that each enters next
    moving = [w for w in range(n) for _ in range(3 * len(rounds))]
    draw.shuffle(moving)
    for worker in [*moving, *(w for _ in rounds for w in range(n))]:
        if draw.random() < 0.5:
            waiting[worker] += 1.0
            published += 1.0
        before, now = at[worker] - 1, at[worker]
        if before >= 0 and worker in entered[before]:
            continue  # its group is not whole
        if now < len(rounds):
            entered[now][worker] = models[worker] + waiting[worker]
            waiting[worker], at[worker] = 0.0, now + 1
            largest = max(largest, _averaged(rounds[now], matrices[now], entered[now], models, worker))
    for worker in range(n):
        models[worker] += waiting[worker]
    carried = all(place == len(rounds) for place in at) and not any(entered)
    return carried, abs(sum(models) - published) < 1e-9 * n * largest, 0 if carried else 1


def _averaged(groups: list[set[int]], w: Matrix, entered: dict[int, float], models: list[float], worker: int) -> float:
    """Average a worker's group once all of it has entered; the largest number that was added up."""
    group = sorted(next((group for group in groups if worker in group), {worker}))
    if not entered.keys() >= set(group):
        return 0.0
    brought = [entered.pop(member) for member in group]
    for member in group:
        models[member] = sum(float(w[member, other]) * b for other, b in zip(group, brought, strict=True))
    return float(abs(w).max()) * max(map(abs, brought))


def _oldest(quorum: dict[str, Any]) -> int | None:
    """The age of a gradient whose worker computes for as long as others can start rounds; None without an end.

    Its computing begins right after a synchronisation, or with all results taken: then most rounds can pass.
    """
    latest, every = quorum["missed"] == "latest", quorum["synchronise_every"]
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
        synchronised = quorum["synchronise_every"]
        return of == "models" and synchronised > 0 and every > 0 and every % synchronised == 0
    # Results that are added up first are rounded otherwise.
    return of == "gradients" and quorum["missed"] == "each" and every >= 1
