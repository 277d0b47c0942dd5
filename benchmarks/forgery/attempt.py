"""One forged certificate before the checker, and the honest ones that forgeries start from."""

from __future__ import annotations

import json
from functools import cache
from typing import TYPE_CHECKING, Any

from benchmarks.forgery.mutations import Donors, fresh, mutate
from benchmarks.forgery.schedules import SCHEDULES, spread, wide
from partreduce.topo.document.schedule import dump_schedule
from partreduce.verify import checker, prove

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

    from partreduce.topo.schedule import Schedule

Document = dict[str, Any]


def certified(schedule: Schedule) -> tuple[Document, Document]:
    """The raw schedule and its certificate."""
    return dump_schedule(schedule), json.loads(json.dumps(dict(prove(schedule).certificate)))


def refusal(raw: Document, certificate: Document) -> str | None:
    """What the checker says against it, None if it accepts. The schedule is consumed."""
    try:
        schedule = checker.read_schedule(raw)
    except checker.Refusal as error:
        return str(error.args[0])
    except Exception as error:  # noqa: BLE001 - what the program reports as unreadable
        return f"unreadable: {type(error).__name__}: {error}"
    return objection(schedule, certificate)


def objection(schedule: checker.schedule.Schedule, certificate: Document) -> str | None:
    """What the checker says against a certificate of a schedule that it has read, None if it accepts."""
    try:
        for _ in checker.check(certificate, schedule):
            pass
    except checker.Refusal as error:
        return str(error.args[0])
    except Exception as error:  # noqa: BLE001 - what the program reports as unreadable
        return f"unreadable: {type(error).__name__}: {error}"
    return None


def kind_of(entry: Document) -> str:
    """The claim, and its method if it has one."""
    return "/".join(filter(None, (entry["claim"], entry.get("method"))))


def entries_by_kind() -> dict[str, list[tuple[Document, Document]]]:
    """For each kind of claim (raw schedule, certificate of that claim alone)."""
    result: dict[str, list[tuple[Document, Document]]] = {}
    for name, schedule in {**SCHEDULES, "wide": wide(), "spread": spread()}.items():
        raw, certificate = certified(schedule)
        for entry in certificate["claims"]:
            kind = kind_of(entry)
            if name not in SCHEDULES and kind not in LARGE:
                continue
            result.setdefault(kind, []).append((raw, {**certificate, "claims": [entry]}))
    return result


LARGE = ("contraction/factor", "contraction/norms")
"""Kinds that need a schedule of more workers."""


def single_claims(certificate: Document) -> Iterator[tuple[Document, Document]]:
    """Each entry with a certificate of it alone, so that one refusal does not shield the others."""
    for entry in certificate["claims"]:
        yield entry, {**certificate, "claims": [entry]}


def reread(raw: Document) -> checker.schedule.Schedule | None:
    """A changed schedule as the checker reads it; None if it is none at all, which is the loaders' business."""
    try:
        return checker.read_schedule(fresh(raw))
    except (checker.Refusal, TypeError, ValueError, AttributeError, KeyError):
        return None


def moved_to(certificate: Document, schedule: checker.schedule.Schedule) -> Document:
    """A certificate with the hash and the shape of another schedule."""
    shape = {"schedule_sha256": schedule.sha256, "num_workers": schedule.num_workers, "period": schedule.period}
    return {**certificate, **shape}


@cache
def donors() -> Donors:
    """What stands in the schedules and certificates of the catalogue."""
    both = [certified(schedule) for schedule in SCHEDULES.values()]
    return Donors(document for raw, certificate in both for document in (raw, *certificate["claims"]))


def mutate_entry(draw: random.Random, entry: Document) -> None:
    """Change one place of what a certificate says; a claim's own numbers are as near as the schedules' are."""
    mutate(draw, entry, donors())


def mutate_schedule(draw: random.Random, raw: Document) -> None:
    """Change one place of what is done, or of what survivors do."""
    name = "failure_plan" if "failure_plan" in raw and draw.random() < 0.4 else "strategy"
    mutate(draw, raw[name], donors(), name)
