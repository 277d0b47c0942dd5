"""Reading the certificate of a schedule: its claims in order, each with the check that decides it.

A certificate holds witnesses: what takes longer to find than to confirm. What follows from the schedule alone stands in
none; `facts.py` computes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from . import consensus, consensus_distance, contraction, groups, outer_steps, survives
from .refusal import confirm, confirm_equal, require
from .schedule import Mode, Schedule
from .strict_json import as_choice, as_list, as_object, as_text

FORMAT = "partreduce.certificate"

MATRICES: frozenset[Mode] = frozenset({"rounds", "gap"})
"""The matrices of a period are known, applied one after the other, and what workers add between two averagings."""


class Claim(NamedTuple):
    """The check of one kind of claim, the members that its entry has, and of what it can be claimed at all."""

    check: Callable[[Schedule, dict[str, Any], str], None]
    members: tuple[str, ...]
    modes: frozenset[Mode] = MATRICES


CLAIMS: dict[str, Claim] = {
    "membership": Claim(groups.check_membership, ("answers",), MATRICES | {"own outer parameters"}),
    "outer-consensus": Claim(outer_steps.check, ("squared", "weights"), frozenset({"own outer parameters"})),
    "consensus/trees": Claim(consensus.check_by_trees, ("trees",)),
    "consensus/graph": Claim(consensus.check_by_graph, ("root", "tree"), MATRICES | {"lossy gap"}),
    "consensus/power": Claim(consensus.check_by_power, ("periods", "squared")),
    "contraction/pivots": Claim(contraction.check_by_pivots, ("squared",)),
    "contraction/factor": Claim(contraction.check_by_factor, ("squared",)),
    "contraction/norms": Claim(contraction.check_by_norms, ("squared",)),
    "consensus-distance": Claim(consensus_distance.check, ("at_most", "bits", "covariance")),
    "exact-consensus/product": Claim(contraction.check_by_product, ()),
    "exact-consensus/labels": Claim(contraction.check_by_labels, ("first", "radices", "labels")),
    "survives": Claim(survives.check, ("failures", "classes", "answers"), frozenset({"rounds"})),
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
    "row-error": "tables are float32",
}
"""What proofs and facts suppose of the program that runs, beside its following the protocol."""

AFTER_FAILURE_TOO = frozenset({"conflict-free", "consensus", "deadlock-free", "survives", "mean-moved"})
"""What holds of the survivors of every failure that a plan covers; all else speaks of the groups of the file."""


def check(certificate: object, schedule: Schedule) -> Iterator[str]:
    """The name of each claim of a parsed certificate, once it is seen to hold for the schedule.

    The certificate must name the schedule's own hash, and no claim stands twice. Groups are seen to be disjoint first,
    because without that there is no mixing matrix to speak about.
    """
    members = ("format", "version", "schedule_sha256", "num_workers", "period", "claims")
    document = as_object(certificate, "certificate", members)
    as_choice(document["format"], "certificate.format", (FORMAT,))
    as_choice(document["version"], "certificate.version", (1,))
    named, own = document["schedule_sha256"], schedule.sha256
    confirm(named == own, "schedule_sha256", named, f'"{own}": the certificate is of another schedule')
    confirm_equal("num_workers", document["num_workers"], schedule.num_workers)
    confirm_equal("period", document["period"], schedule.period)
    groups.confirm_disjoint(schedule)
    proved: set[str] = set()
    for number, entry in enumerate(as_list(document["claims"], "claims")):
        place = f"claims[{number}]"
        require(isinstance(entry, dict) and "claim" in entry, place, "must be an object with a claim")
        claim = as_text(entry["claim"], f"{place}.claim")
        name = claim if "method" not in entry else f"{claim}/{as_text(entry['method'], f'{place}.method')}"
        place = f"{place} ({name[:60]})"
        is_known = "/" not in claim and name in CLAIMS and claim not in proved
        require(is_known, place, "is unknown or repeated")
        confirm(schedule.mode in CLAIMS[name].modes, place, name, f"a claim about {schedule.mode}")
        as_object(entry, place, ("claim", *CLAIMS[name].members), ("method",))
        CLAIMS[name].check(schedule, entry, place)
        proved.add(claim)
        yield claim
