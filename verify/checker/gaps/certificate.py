"""Reading a certificate of iteration gaps: its graph and setting, and its claims in order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from ..refusal import require
from ..strict_json import as_choice, as_list, as_object, as_text
from .claims import Entry, check_every_pair, check_live, check_pair, check_queues, check_skip
from .events import EventGraph

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT = "partreduce.gaps-certificate"


class Check(Protocol):
    """Returns what was proved in words, or raises a Refusal."""

    def __call__(self, events: EventGraph, entry: Entry, place: str, *, is_live: bool) -> str:
        """`is_live` says whether `live` was proved before."""


class Claim(NamedTuple):
    """The check of one claim, and the members that its entry must or may have."""

    check: Check
    members: tuple[str, ...]
    optional: tuple[str, ...] = ()


CLAIMS: dict[str, Claim] = {
    "live": Claim(check_live, ("ticks",)),
    "queues": Claim(check_queues, ("bounds", "support", "update"), ("token",)),
    "skip": Claim(check_skip, ("longest",)),
    "pair": Claim(check_pair, ("from", "to", "bound", "distances")),
    "every-pair": Claim(check_every_pair, ("bound", "distances")),
}


def is_gap_certificate(certificate: object) -> bool:
    """Whether a parsed file calls itself one."""
    return isinstance(certificate, dict) and certificate.get("format") == FORMAT


def check_gaps(certificate: object) -> Iterator[tuple[str, str]]:
    """The name of each claim of a parsed certificate, once it is seen to hold, and what it says.

    Raises:
        Refusal: the certificate is not what it must be, or an entry does not hold.
    """
    document = as_object(certificate, "certificate", ("format", "version", "graph", "setting", "claims"))
    as_choice(document["format"], "certificate.format", (FORMAT,))
    as_choice(document["version"], "certificate.version", (1,))
    events = EventGraph(document["graph"], document["setting"])
    entries = as_list(document["claims"], "claims")
    require(entries, "claims", "must be a list of at least 1")
    proved: set[str] = set()
    for number, entry in enumerate(entries):
        place = f"claims[{number}]"
        require(isinstance(entry, dict) and "claim" in entry, place, "must be an object with a claim")
        name = as_text(entry["claim"], f"{place}.claim")
        place = f"{place} ({name[:40]})"
        require(name in CLAIMS and name not in proved, place, "is unknown or repeated")
        claim = CLAIMS[name]
        as_object(entry, place, ("claim", *claim.members), claim.optional)
        statement = claim.check(events, entry, place, is_live="live" in proved)
        proved.add(name)
        yield name, statement
