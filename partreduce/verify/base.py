"""What the verifier answers: claims about one schedule, each with its status, and the proof that holds them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Context, Decimal
from enum import StrEnum
from fractions import Fraction
from math import ceil, frexp
from typing import Any

from partreduce.topo.errors import RefutedError


class Status(StrEnum):
    """What is known about a claim. The answers are never merged.

    A fact is computed from the schedule alone. What follows from the rules of a protocol holds of a program that obeys
    them, which is assumed of the one that runs, however well it was explored.
    """

    PROVED = "proved"
    FACT = "fact"
    FOLLOWS = "follows from the rules"
    REFUTED = "refuted"
    NOT_PROVED = "not proved"


AGREEMENT = frozenset({"consensus", "outer-consensus", "equal-replicas", "convergence"})
"""Claims of which any one that holds guarantees that the workers reach consensus."""
SHOWN = 32
"""Members of a set of workers that a sentence lists."""
GUARANTEED, NOT_GUARANTEED = "guaranteed", "not guaranteed"

STANDS_FOR = {"unit-sums": "doubly-stochastic"}
"""A claim that is made instead of an essential one, and is enough: weights may be negative, the mean is kept."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement about a schedule.

    `witness` is what a reader can confirm by hand (a conflict, a closed set of workers, a cycle, a bound), as
    JSON-able data; `explanation` says in words why the status holds. `entry` is the part of the certificate that the
    checker reads, if the status is proved; `numbers` are those of a fact or of what follows from the rules, which the
    checker computes by itself. `is_property`: it says what a schedule can do beyond what every schedule must, so its
    refutation leaves the verdict alone. `assumes`: what is supposed of the program that runs, in words.
    `before_failure`: it may be false after a failure. `summary`: a refutation in a few words.
    """

    claim: str
    status: Status
    explanation: str
    witness: Mapping[str, Any] | None = None
    entry: Mapping[str, Any] | None = None
    is_property: bool = False
    numbers: Mapping[str, Any] | None = None
    assumes: str = ""
    before_failure: bool = False
    summary: str = ""

    @property
    def holds(self) -> bool:
        """Whether it is known to hold: proved, a fact, or following from the rules that its program obeys."""
        return self.status in (Status.PROVED, Status.FACT, Status.FOLLOWS)

    @property
    def speaks_against(self) -> bool:
        """Whether it is refuted, and no mere property."""
        return self.status is Status.REFUTED and not self.is_property

    @property
    def words(self) -> str:
        """The explanation, and what it does not say of failures and of the program."""
        until = "This is so before a failure." if self.before_failure else ""
        return " ".join(filter(None, (self.explanation, until, self.assumes and f"Assumed: {self.assumes}.")))

    def to_json(self) -> dict[str, Any]:
        """The form that `partreduce verify --json` prints."""
        document: dict[str, Any] = {"claim": self.claim, "status": self.status.value}
        if self.is_property:
            document["property"] = True
        if self.before_failure:
            document["before_failure"] = True
        if self.assumes:
            document["assumes"] = self.assumes
        if self.numbers:
            document["numbers"] = dict(self.numbers)
        if self.witness is not None:
            document["witness"] = dict(self.witness)
        return document


@dataclass(frozen=True, slots=True)
class Proof:
    """All claims about one schedule. `certificate` holds the proved ones in the form that the checker reads.

    `essential` names the claims without which a schedule of its kind should not be run (`verify.prove.STATEMENTS`).
    """

    name: str
    claims: tuple[Claim, ...]
    essential: frozenset[str]
    certificate: Mapping[str, Any] = field(repr=False)

    @property
    def verdict(self) -> Status:
        """`refuted` if a claim is that is no property; `not proved` unless all essential ones hold.

        Else `proved`, or `follows from the rules` where no claim at all is proved. Other claims (rates, bounds) that
        are "not proved" are listed only, and so are properties, however they stand.
        """
        if any(claim.speaks_against for claim in self.claims):
            return Status.REFUTED
        if not self.essential or self.open:
            return Status.NOT_PROVED
        return Status.PROVED if any(claim.status is Status.PROVED for claim in self.claims) else Status.FOLLOWS

    @property
    def guarantees_consensus(self) -> bool:
        """Whether a claim holds by which all workers come to agree."""
        return any(claim.claim in AGREEMENT and claim.holds for claim in self.claims)

    @property
    def can_part(self) -> list[list[int]]:
        """Sets of workers that may never hear of one another, or one set that may never hear of all others.

        Empty where consensus is not refuted, and of a rule, whose witness names local ranks for any number of nodes.
        """
        against = self._against_consensus
        witness: Mapping[str, Any] = {} if against is None else against.witness or {}
        for key in ("closed_sets", "cycle_of_sets"):
            if key in witness:
                return [list(members) for members in witness[key]]
        return [list(witness[key]) for key in ("workers", "closed") if key in witness]

    @property
    def parting_words(self) -> str:
        """That consensus is not guaranteed, and who may never hear of whom; empty where it is guaranteed."""
        if self.guarantees_consensus:
            return ""
        against = self._against_consensus
        return f"consensus is {NOT_GUARANTEED}{f': {against.summary}' if against and against.summary else ''}"

    @property
    def _against_consensus(self) -> Claim | None:
        """The claim by which consensus is refuted, if one is."""
        against = (one for one in self.claims if one.claim in AGREEMENT and one.status is Status.REFUTED)
        return next((one for one in against if one.witness is not None), None)

    def without_consensus(self) -> Proof:
        """The same proof where consensus is a property, which the verdict does not need."""
        claims = (replace(claim, is_property=True) if claim.claim in AGREEMENT else claim for claim in self.claims)
        return replace(self, claims=tuple(claims), essential=self.essential - AGREEMENT)

    @property
    def absent(self) -> frozenset[str]:
        """The essential claims that nobody has looked at."""
        return self.essential - {STANDS_FOR.get(claim.claim, claim.claim) for claim in self.claims}

    @property
    def open(self) -> frozenset[str]:
        """The essential claims that are not known to hold."""
        names = {STANDS_FOR.get(claim.claim, claim.claim) for claim in self.claims if not claim.holds}
        return self.absent | (self.essential & names)

    def __getitem__(self, name: str) -> Claim:
        for claim in self.claims:
            if claim.claim == name:
                return claim
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        """Whether a claim of that name was looked at."""
        return any(claim.claim == name for claim in self.claims)

    def to_json(self) -> dict[str, Any]:
        """`{"verdict": …, "consensus": …, "can_part": […], "claims": […]}`; the command line adds metrics."""
        return {
            "verdict": self.verdict.value,
            "consensus": GUARANTEED if self.guarantees_consensus else NOT_GUARANTEED,
            **({"can_part": self.can_part} if self.can_part else {}),
            "claims": [claim.to_json() for claim in self.claims],
        }

    def explain(self) -> str:
        """Every claim in words, one paragraph each; first that consensus is not guaranteed, where it is not."""
        lines = [f"{claim.claim}: {claim.status.value}. {claim.words}" for claim in self.claims]
        return "\n".join(filter(None, (self.parting_words, *lines)))

    def require(self) -> Proof:
        """Return the proof itself, or raise if a claim is false that is no mere property.

        Raises:
            RefutedError: with the first refuted claim's explanation.
        """
        for claim in self.claims:
            if claim.speaks_against:
                raise RefutedError(f"schedule {self.name!r}: {claim.claim} is refuted: {claim.explanation}")
        return self


def proved(claim: str, explanation: str, witness: Mapping[str, Any] | None = None, /, **entry: object) -> Claim:
    """A proved claim whose certificate entry holds the given fields."""
    return Claim(claim, Status.PROVED, explanation, witness, {"claim": claim, **entry})


def follows(claim: str, explanation: str, witness: Mapping[str, Any] | None = None) -> Claim:
    """What holds of every program that obeys the rules of the protocol."""
    return Claim(claim, Status.FOLLOWS, explanation, witness)


def refuted(claim: str, explanation: str, witness: Mapping[str, Any], summary: str = "") -> Claim:
    """A false claim with its counter-example, and what it comes to in a few words."""
    return Claim(claim, Status.REFUTED, explanation, witness, summary=summary)


def not_proved(claim: str, explanation: str) -> Claim:
    """A claim that is neither shown true nor false, with the reason."""
    return Claim(claim, Status.NOT_PROVED, explanation)


def fraction_above(value: float, bits: int = 32) -> Fraction:
    """The least fraction of that many significant bits that is not below a positive float."""
    unit = Fraction(2) ** (frexp(value)[1] - bits)
    return ceil(Fraction(value) / unit) * unit


def upper(value: Fraction, digits: int = 6, *, power: int = 1) -> str:
    """A bound for a sentence: the least decimal of so many digits that is not below the value's root.

    More digits where a bound below 1 would read as 1.
    """
    near = Context(prec=digits + 8).divide(Decimal(value.numerator), Decimal(value.denominator))
    number = Context(prec=digits, rounding=ROUND_CEILING).plus(near if power == 1 else near.sqrt(Context(digits + 8)))
    while Fraction(number) ** power < value:
        number = number.next_plus(Context(prec=digits))
    if number >= 1 > value:
        return upper(value, digits + 3, power=power)
    return f"{float(number):.{digits}g}" if digits < 16 else f"{number:f}"


def some(items: Sequence[int], limit: int = 12) -> str:
    """A set of ranks for a sentence: the first few, then how many there are."""
    listed = [int(item) for item in items[:limit]]
    rest = f",… ({len(items)} in all)" if len(items) > limit else ""
    return "{" + ",".join(map(str, listed)) + rest + "}"
