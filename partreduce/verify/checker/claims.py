"""All statements about a schedule: claims with the check of their certificate entries, and facts with their functions.

A certificate holds witnesses: data that takes longer to find than to confirm. A *fact* follows from the schedule alone
and needs no witness: a function computes its numbers, with the proof in its docstring or at the top of its file, and
returns None if the fact does not apply. A statement that holds for every program that obeys a protocol's rules depends
on the running program, not on the file alone: it is marked as following from the rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from . import (
    codec_error,
    consensus,
    consensus_distance,
    gaps,
    groups,
    outer_steps,
    quorum,
    rounds,
    survives,
    tables,
    traffic,
)
from .refusal import TooLarge, Work, confirm, confirm_equal, require
from .schedule import Mode, Numbers, Schedule
from .schema import Schema, hold

MATRICES: frozenset[Mode] = frozenset({"rounds", "gap"})
"""Modes in which a period is a fixed sequence of mixing matrices, to which claims about matrices apply."""


class Claim(NamedTuple):
    """One kind of claim: the check of an entry, its members' schemas, and the modes (`Schedule.mode`) it applies to."""

    check: Callable[[Schedule, dict[str, Any], str], None]
    members: dict[str, Schema]
    modes: frozenset[Mode] = MATRICES


def _integers(low: int, high: int) -> Schema:
    return {"type": "integer", "minimum": low, "maximum": high}


def _lists(items: Schema, **lengths: int) -> Schema:
    return {"type": "array", "items": items, **lengths}


def _objects(**members: Schema) -> Schema:
    return {"type": "object", "properties": members, "required": [name for name in members if name != "method"]}


TEXT: Schema = {"type": "string"}
SQUARED: dict[str, Schema] = {"squared": TEXT}
NUMBER = _integers(-1, 2**31)
"""A worker, phase, digit or label, or -1 for the vertex ZERO of a tree; each check limits the range further."""
TRIPLES = _lists(_lists(NUMBER, minItems=3, maxItems=3))
CERTIFICATE = _objects(
    format={"const": "partreduce.certificate"},
    version={"const": 1},
    schedule_sha256=TEXT,
    num_workers=NUMBER,
    period=NUMBER,
    claims={"type": "array"},
)
CLAIMS: dict[str, Claim] = {
    "membership": Claim(groups.check_membership, {"answers": TEXT}, MATRICES | {"own outer parameters"}),
    "outer-consensus": Claim(
        outer_steps.check,
        SQUARED | {"weights": _lists(_lists(_integers(-(2**64), 2**64 - 1)))},
        frozenset({"own outer parameters"}),
    ),
    "consensus/trees": Claim(consensus.check_by_trees, {"trees": _lists(TRIPLES)}),
    "consensus/graph": Claim(consensus.check_by_graph, {"root": NUMBER, "tree": TRIPLES}, MATRICES | {"lossy gap"}),
    "consensus/power": Claim(consensus.check_by_pivots, SQUARED | {"periods": _integers(1, 1000)}),
    "contraction/pivots": Claim(consensus.check_by_pivots, SQUARED),
    "contraction/factor": Claim(consensus.check_listed, SQUARED),
    "contraction/norms": Claim(consensus.check_listed, SQUARED),
    "consensus-distance": Claim(
        consensus_distance.check,
        {"at_most": TEXT, "bits": _integers(0, 64), "covariance": _lists(_lists(_integers(-(2**96), 2**96 - 1)))},
    ),
    "exact-consensus/product": Claim(consensus.check_by_product, {}),
    "exact-consensus/labels": Claim(
        consensus.check_by_labels,
        {"first": NUMBER, "radices": _lists(_integers(2, 2**31)), "labels": _lists(NUMBER)},
    ),
    "survives": Claim(
        survives.check,
        {"failures": NUMBER, "classes": _lists(_objects(failed=_lists(NUMBER), **SQUARED)), "answers": TEXT},
        frozenset({"rounds"}),
    ),
}
"""Every claim by its name, or its name and method."""

ASSUMED = {
    "membership": "answers is the hash of what the installed function answered for every worker",
    "survives": "the installed code runs after a failure what answers is the hash of, or, where that is empty, what "
    "the file says; survivors agree on who failed, and continue in the same round",
    "codec-error": "parameters are float32 or float64, and a ring rounds each 16-bit addition once and to the nearest",
    "memory": "the program has a communicator for each set of members, and no arrays but these",
    "sent-bytes": "sums go around one ring in the order of ranks, and small messages are not counted",
    "one-owner": "the installed code takes the owner of every row from the file",
    "nic-bytes": "a step looks each table up once, and messages about sizes are not counted",
}
"""Assumptions of proofs and facts about the running program, besides that it follows the protocol."""

AFTER_FAILURE_TOO = frozenset({"conflict-free", "deadlock-free", "survives"})
"""Claims that also hold for the survivors of every planned failure; all others are about the groups of the file.

Consensus of the survivors is the claim `survives`; it does not follow from the claim `consensus`.
"""


def check(certificate: object, schedule: Schedule) -> Iterator[str]:
    """Confirm a certificate claim by claim.

    A claim that is yielded is proved for the averages that the schedule describes, from the file alone; ASSUMED lists
    its further assumptions. The certificate must name the schedule's hash, and each claim at most once.

    Args:
        certificate: the parsed JSON, in the form that `partreduce verify` writes.
        schedule: the result of `read_schedule`.

    Yields:
        The name of each claim, without its method, once it is confirmed.

    Raises:
        Refusal: status 65 if the certificate has another form, or a check would take too long; 1 if it belongs to
            another schedule, if two groups of a phase share a worker, or at the first entry that does not hold.
    """
    hold([certificate], CERTIFICATE, "certificate")
    document: Any = certificate
    named, own = document["schedule_sha256"], schedule.sha256
    confirm(named == own, "schedule_sha256", named, f'"{own}": the certificate is of another schedule')
    confirm_equal("num_workers", document["num_workers"], schedule.num_workers)
    confirm_equal("period", document["period"], schedule.period)
    groups.confirm_disjoint(schedule)
    proved: set[str] = set()
    for number, entry in enumerate(document["claims"]):
        hold([entry], {"type": "object"}, f"claims[{number}]")
        claim = str(entry.get("claim"))
        name = f"{claim}/{entry['method']}" if "method" in entry else claim
        place = f"claims[{number}] ({name[:60]})"
        require("/" not in claim and name in CLAIMS and claim not in proved, place, "is unknown or repeated")
        confirm(schedule.mode in CLAIMS[name].modes, place, name, f"a claim about {schedule.mode}")
        hold([entry], _objects(claim=TEXT, method=TEXT, **CLAIMS[name].members), place)
        CLAIMS[name].check(schedule, entry, place)
        proved.add(claim)
        yield claim


Stated = Callable[[Schedule, Work], Numbers | None]

MAX_WORK = 10**9
"""Limit on the work for one fact, some seconds; a fact that needs more is reported without numbers."""


class Fact(NamedTuple):
    """A statement about a schedule that needs no certificate.

    Attributes:
        name: the name of the statement; FACTS names the file with its theorem.
        numbers: exact values by name, as integers or as fractions in text; None if computing them would take too long.
        follows: True if it holds for every program that obeys the protocol's rules, False if it follows from the file
            alone.
    """

    name: str
    numbers: Numbers | None
    follows: bool


def without_numbers(_: Schedule, __: Work) -> Numbers:
    """Return {}, the numbers of a fact that needs none: it holds for every schedule of its mode (`Schedule.mode`)."""
    return {}


SUMS: dict[str, Stated] = {"doubly-stochastic": groups.doubly_stochastic, "unit-sums": groups.unit_sums}
GAP: dict[str, Stated] = {
    "deadlock-free": without_numbers,
    "queues": gaps.queues,
    "gap": gaps.gap,
    "memory": gaps.memory,
}
RUNS: dict[str, Stated] = {
    "deadlock-free": without_numbers,
    "staleness": rounds.staleness,
    "end": rounds.end,
    "fragments": rounds.fragments,
    "equal-replicas": rounds.equal_replicas,
    "codec-error": codec_error.codec_error,
    "memory": traffic.memory,
    "sent-bytes": traffic.sent_bytes,
    "one-owner": tables.one_owner,
    "table-order": tables.table_order,
    "nic-bytes": tables.nic_bytes,
}
OWN = ("deadlock-free", "staleness", "end", "memory", "sent-bytes")
FACTS: dict[Mode, dict[str, Stated]] = {
    "rounds": SUMS | RUNS,
    "own outer parameters": {name: RUNS[name] for name in OWN},
    "gap": SUMS | GAP | {"staleness": rounds.staleness, "end": rounds.end},
    "lossy gap": GAP | {"consensus": gaps.consensus, "staleness": gaps.staleness},
    "rounds by quorum": {
        "conservation": without_numbers,
        "staleness": quorum.staleness,
        "deadlock-free": without_numbers,
        "equal-replicas": quorum.equal_replicas,
    },
}
"""The facts of each mode, by name, with the functions that compute their numbers."""

OF_THE_FILE = SUMS.keys() | ASSUMED.keys()
"""Names of facts that follow from the file alone; all others, and all in GAP, follow from the rules of a protocol."""


def fact(schedule: Schedule, name: str, limit: int | None = None) -> Fact | None:
    """Return one fact of a schedule with disjoint groups, or None if it does not apply; `limit` bounds the work."""
    stated = FACTS[schedule.mode].get(name)
    if stated is None:
        return None
    follows = name not in OF_THE_FILE or stated in GAP.values()
    try:
        numbers = stated(schedule, Work(name, limit or MAX_WORK))
    except TooLarge:
        return Fact(name, None, follows)
    return None if numbers is None else Fact(name, numbers, follows)


def facts(schedule: Schedule) -> Iterator[Fact]:
    """Yield every fact of a schedule.

    Args:
        schedule: the result of `read_schedule`.

    Yields:
        The facts, in the order of FACTS.

    Raises:
        Refusal: status 1 if two groups of a phase share a worker.
    """
    groups.confirm_disjoint(schedule)
    if schedule.phases:
        yield Fact("conflict-free", {}, follows=False)
    for name in FACTS[schedule.mode]:
        if (found := fact(schedule, name)) is not None:
            yield found
