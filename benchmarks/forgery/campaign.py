"""Attempts to have the checker confirm or state a false claim, each judged by an oracle that shares no code with it."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from typing import TYPE_CHECKING, Any

from benchmarks.forgery.mutations import Donors, fresh, mutate
from benchmarks.forgery.oracle import is_true
from benchmarks.forgery.schedules import SCHEDULES, random_schedule, spread, wide, with_tables
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.errors import ScheduleError
from partreduce.verify import checker, prove

if TYPE_CHECKING:
    from collections.abc import Iterator

    from partreduce.topo.schedule import Schedule
    from partreduce.verify.checker.schedule import Schedule as ReadSchedule


Document = dict[str, Any]


def certify(schedule: Schedule) -> tuple[Document, Document]:
    return dump_schedule(schedule), json.loads(json.dumps(dict(prove(schedule).certificate)))


def refusal(raw: Document, certificate: Document) -> str | None:
    """Return the checker's objection to a certificate, None if it accepts; `raw` is changed."""
    try:
        schedule = checker.read_schedule(raw)
    except Exception as error:  # noqa: BLE001 - what the program reports as unreadable
        return _words(error)
    return objection(schedule, certificate)


def objection(schedule: checker.schedule.Schedule, certificate: Document) -> str | None:
    """Return the checker's objection to a certificate of a schedule that it has read, None if it accepts."""
    try:
        for _ in checker.check(certificate, schedule):
            pass
    except Exception as error:  # noqa: BLE001 - as above
        return _words(error)
    return None


def _words(error: Exception) -> str:
    is_refusal = isinstance(error, checker.Refusal)
    return str(error.args[0]) if is_refusal else f"unreadable: {type(error).__name__}: {error}"


def kind_of(entry: Document) -> str:
    return "/".join(filter(None, (entry["claim"], entry.get("method"))))


def single_claims(certificate: Document) -> Iterator[tuple[Document, Document]]:
    """Yield (entry, certificate with it alone), so that one objection does not hide the others."""
    for entry in certificate["claims"]:
        yield entry, {**certificate, "claims": [entry]}


def reread(raw: Document) -> checker.schedule.Schedule | None:
    """Return a changed schedule as the checker reads it; None if it is invalid, which is the loaders' task."""
    try:
        return checker.read_schedule(fresh(raw))
    except (checker.Refusal, TypeError, ValueError, AttributeError, KeyError):
        return None


def moved_to(certificate: Document, schedule: checker.schedule.Schedule) -> Document:
    """Return a certificate with the hash and shape of another schedule."""
    shape = {"schedule_sha256": schedule.sha256, "num_workers": schedule.num_workers, "period": schedule.period}
    return {**certificate, **shape}


@cache
def donors() -> Donors:
    """Return the values in the schedules and certificates of the catalogue."""
    both = [certify(schedule) for schedule in SCHEDULES.values()]
    return Donors(document for raw, certificate in both for document in (raw, *certificate["claims"]))


WAYS = ("mutated entry", "mutated schedule", "another schedule's entry", "fact of a mutated schedule")
RANDOM_SCHEDULES = 60
TABLED = range(0, RANDOM_SCHEDULES, 3)
"""Random schedules to which tables are added."""

ENTRIES = 15
"""Mutated entries per mutated schedule, which counts as one attempt for each of its claims."""

SLOW = ("wide", "spread")
"""Schedules of many workers, forged only for kinds of claim that no small one has."""


@dataclass(frozen=True)
class Honest:
    """A schedule with a valid certificate, as documents and as the checker reads it."""

    name: str
    raw: Document
    certificate: Document
    read: ReadSchedule


@dataclass
class Tally:
    """The results: attempts and accepted ones by (way, kind of claim), and every false claim that was confirmed."""

    attempts: Counter[tuple[str, str]] = field(default_factory=Counter)
    accepted: Counter[tuple[str, str]] = field(default_factory=Counter)
    false: list[tuple[str, str, Document, Document]] = field(default_factory=list)
    honest: int = 0
    refused_honest: list[str] = field(default_factory=list)


def pool(seed: int) -> list[Honest]:
    """Return schedules with every kind of claim, and random ones."""
    draw = random.Random(f"pool {seed}")
    schedules = {f"random {number}": random_schedule(draw) for number in range(RANDOM_SCHEDULES)}
    tables = random.Random(f"tables {seed}")
    schedules |= {f"random {number}": with_tables(tables, schedules[f"random {number}"]) for number in TABLED}
    return _prove_all({**SCHEDULES, "wide": wide(), "spread": spread(), **schedules})


def _prove_all(schedules: dict[str, Schedule]) -> list[Honest]:
    """Return the schedules that are valid, with their certificates."""
    result = []
    for name, schedule in schedules.items():
        try:
            raw, certificate = certify(schedule)
        except ScheduleError:
            continue
        read = reread(raw)
        assert read is not None, "honest"
        result.append(Honest(name, raw, certificate, read))
    return result


def run(attempts: int, seed: int) -> Tally:
    """Check all valid certificates, then make so many attempts of one claim each."""
    tally, honest = Tally(), pool(seed)
    for one in honest:
        tally.honest += 1
        message = objection(one.read, fresh(one.certificate))
        if message is not None:
            tally.refused_honest.append(f"{one.name}: {message}")
    for way, name, raw, read, certificate in islice(_forgeries(honest, random.Random(f"forgeries {seed}")), attempts):
        tally.attempts[way, name] += 1
        if way == WAYS[3] or objection(read, certificate) is None:
            tally.accepted[way, name] += 1
            entry = certificate["claims"][-1]
            if not is_true(entry, raw):
                tally.false.append((way, name, entry, raw))
    return tally


Forgery = tuple[str, str, Document, "ReadSchedule", Document]
"""(way, kind of claim, raw schedule, the schedule as read, the certificate whose last entry is forged or stated)."""


def _forgeries(honest: list[Honest], draw: random.Random) -> Iterator[Forgery]:
    """Yield forgeries endlessly, the ways in turn."""
    kinds = _by_kind(honest)
    names = sorted(kinds)
    small = [one for one in honest if one.name not in SLOW]
    while True:
        for _ in range(ENTRIES):
            yield from _mutated_entry(kinds[draw.choice(names)], draw)
        yield from _mutated_schedule(draw.choice(small), draw)
        yield from _moved_entries(*draw.sample(small, 2))


def _by_kind(honest: list[Honest]) -> dict[str, list[tuple[Honest, Document]]]:
    """Return (schedule, certificate with one claim) for each kind of claim."""
    result: dict[str, list[tuple[Honest, Document]]] = {}
    for one in sorted(honest, key=lambda one: one.name in SLOW):
        for entry, single in single_claims(one.certificate):
            if one.name not in SLOW or kind_of(entry) not in result:
                result.setdefault(kind_of(entry), []).append((one, single))
    return result


def _mutated_entry(cases: list[tuple[Honest, Document]], draw: random.Random) -> Iterator[Forgery]:
    one, single = draw.choice(cases)
    certificate = fresh(single)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        mutate(draw, certificate["claims"][-1], donors())
    if repr(certificate) != repr(single):
        yield WAYS[0], kind_of(single["claims"][-1]), one.raw, one.read, certificate


def _mutated_schedule(one: Honest, draw: random.Random) -> Iterator[Forgery]:
    raw = fresh(one.raw)
    name = "failure_plan" if "failure_plan" in raw and draw.random() < 0.4 else "strategy"
    mutate(draw, raw[name], donors(), name)
    read = reread(raw)
    if read is not None and raw != one.raw:
        for entry, single in single_claims(moved_to(one.certificate, read)):
            yield WAYS[1], kind_of(entry), raw, read, single
        for entry in _facts_of(read):
            yield WAYS[3], entry["claim"], raw, read, {"claims": [entry]}


def _facts_of(read: ReadSchedule) -> list[Document]:
    """Return the facts of a schedule as entries of a certificate; none if groups overlap."""
    try:
        return [{"claim": fact.name, **fact.numbers} for fact in checker.facts(read) if fact.numbers is not None]
    except checker.Refusal:
        return []


def _moved_entries(one: Honest, other: Honest) -> Iterator[Forgery]:
    """Yield the claims of one schedule as claims about the other."""
    for entry, single in single_claims(moved_to(one.certificate, other.read)):
        yield WAYS[2], kind_of(entry), other.raw, other.read, single
