"""Define the result of verification: a `Proof` of one schedule, which holds claims, each with its status."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import ROUND_CEILING, Context, Decimal
from enum import StrEnum
from fractions import Fraction
from math import ceil, frexp
from typing import Any

from partreduce.topo.errors import RefutedError


class Status(StrEnum):
    """The status of a claim.

    PROVED: the certificate holds evidence that the checker confirms. FACT: computed from the schedule alone. FOLLOWS:
    true of every program that obeys the protocol's rules; that the running program obeys them is assumed.
    """

    PROVED = "proved"
    FACT = "fact"
    FOLLOWS = "follows from the rules"
    REFUTED = "refuted"
    NOT_PROVED = "not proved"


AGREEMENT = frozenset({"consensus", "outer-consensus", "equal-replicas", "convergence"})
"""Claims each of which guarantees that the workers reach consensus."""
SHOWN = 32
"""Most ranks that a sentence lists of one set of workers."""
GUARANTEED, NOT_GUARANTEED = "guaranteed", "not guaranteed"

STANDS_FOR = {"unit-sums": "doubly-stochastic"}
"""Claims, each with the essential claim it can replace: under `unit-sums` weights may be negative, but means stay."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One statement about a schedule, with its status and evidence.

    `explanation` is the reason for the status in words. `witness` is evidence that a reader can confirm by hand (a
    conflict, a closed set of workers, a cycle, a bound), as JSON-able data. `entry` is the part of the certificate that
    the checker reads, if the status is proved; `numbers` are the values of a fact or of a claim that follows from the
    rules, which the checker recomputes. `is_property`: the claim is an optional capability, so its refutation does not
    change the verdict. `assumes`: assumptions about the running program, in words. `before_failure`: the claim may be
    false after a failure. `summary`: a refutation in a few words.
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
        """Return whether the claim is known to hold: proved, a fact, or following from the rules of the protocol."""
        return self.status in (Status.PROVED, Status.FACT, Status.FOLLOWS)

    @property
    def is_refuted_requirement(self) -> bool:
        """Return whether the claim is refuted and is not an optional property."""
        return self.status is Status.REFUTED and not self.is_property

    @property
    def words(self) -> str:
        """Return the explanation, followed by its limits: valid until a failure, and assumptions about the program."""
        until = "This is so before a failure." if self.before_failure else ""
        return " ".join(filter(None, (self.explanation, until, self.assumes and f"Assumed: {self.assumes}.")))

    def to_json(self) -> dict[str, Any]:
        """Return the claim as in the output of `partreduce verify --json`."""
        details = {
            "property": self.is_property,
            "before_failure": self.before_failure,
            "assumes": self.assumes,
            "numbers": dict(self.numbers or {}),
            "witness": dict(self.witness or {}),
        }
        return {"claim": self.claim, "status": self.status.value, **{key: one for key, one in details.items() if one}}


@dataclass(frozen=True, slots=True)
class Proof:
    """All claims about one schedule; `certificate` holds the proved claims in the form that the checker reads.

    `essential` names the claims without which a schedule of its kind should not be run (`verify.prove.STATEMENTS`).
    """

    name: str
    claims: tuple[Claim, ...]
    essential: frozenset[str]
    certificate: Mapping[str, Any] = field(repr=False)

    @property
    def verdict(self) -> Status:
        """Return the status of the whole schedule.

        It is `refuted` if a claim other than an optional property is refuted, and `not proved` unless all essential
        claims hold; otherwise `proved`, or `follows from the rules` if no claim is proved. Other claims (rates, bounds)
        that are not proved, and properties, do not change the verdict.
        """
        if any(claim.is_refuted_requirement for claim in self.claims):
            return Status.REFUTED
        if not self.essential or self.open:
            return Status.NOT_PROVED
        return Status.PROVED if any(claim.status is Status.PROVED for claim in self.claims) else Status.FOLLOWS

    @property
    def guarantees_consensus(self) -> bool:
        """Return whether a claim that implies consensus holds."""
        return any(claim.claim in AGREEMENT and claim.holds for claim in self.claims)

    @property
    def can_part(self) -> list[list[int]]:
        """Return the sets of workers that refute consensus: closed to others, or passing values around in a cycle.

        Empty unless consensus is refuted, and for a rule, whose counterexample names local ranks instead of workers.
        """
        against = self._against_consensus
        witness: Mapping[str, Any] = {} if against is None else against.witness or {}
        for key in ("closed_sets", "cycle_of_sets"):
            if key in witness:
                return [list(members) for members in witness[key]]
        return [list(witness[key]) for key in ("workers", "closed") if key in witness]

    @property
    def parting_words(self) -> str:
        """Return the sentence that consensus is not guaranteed, with a refutation's summary; "" if it is guaranteed."""
        if self.guarantees_consensus:
            return ""
        against = self._against_consensus
        return f"consensus is {NOT_GUARANTEED}{f': {against.summary}' if against and against.summary else ''}"

    @property
    def _against_consensus(self) -> Claim | None:
        against = (one for one in self.claims if one.claim in AGREEMENT and one.status is Status.REFUTED)
        return next((one for one in against if one.witness is not None), None)

    def without_consensus(self) -> Proof:
        """Return the same proof with consensus as an optional property, so that the verdict does not depend on it."""
        claims = (replace(claim, is_property=True) if claim.claim in AGREEMENT else claim for claim in self.claims)
        return replace(self, claims=tuple(claims), essential=self.essential - AGREEMENT)

    @property
    def absent(self) -> frozenset[str]:
        """Return the names of the essential claims that were not examined."""
        return self._without(self.claims)

    @property
    def open(self) -> frozenset[str]:
        """Return the names of the essential claims that are not known to hold."""
        return self._without(claim for claim in self.claims if claim.holds)

    def _without(self, claims: Iterable[Claim]) -> frozenset[str]:
        return self.essential - {STANDS_FOR.get(claim.claim, claim.claim) for claim in claims}

    def __getitem__(self, name: str) -> Claim:
        for claim in self.claims:
            if claim.claim == name:
                return claim
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        """Return whether a claim of that name was examined."""
        return any(claim.claim == name for claim in self.claims)

    def to_json(self) -> dict[str, Any]:
        """Return the keys `verdict`, `consensus`, `can_part` and `claims` as JSON-able data, without metrics."""
        return {
            "verdict": self.verdict.value,
            "consensus": GUARANTEED if self.guarantees_consensus else NOT_GUARANTEED,
            **({"can_part": self.can_part} if self.can_part else {}),
            "claims": [claim.to_json() for claim in self.claims],
        }

    def explain(self) -> str:
        """Return one paragraph for each claim, preceded by a warning if consensus is not guaranteed."""
        lines = [f"{claim.claim}: {claim.status.value}. {claim.words}" for claim in self.claims]
        return "\n".join(filter(None, (self.parting_words, *lines)))

    def require(self) -> Proof:
        """Return the proof, or raise if a claim other than an optional property is refuted.

        Raises:
            RefutedError: with the first refuted claim's explanation.
        """
        for claim in self.claims:
            if claim.is_refuted_requirement:
                raise RefutedError(f"schedule {self.name!r}: {claim.claim} is refuted: {claim.explanation}")
        return self


def proved(claim: str, explanation: str, witness: Mapping[str, Any] | None = None, /, **entry: object) -> Claim:
    """Return a proved claim; the keyword arguments become fields of its certificate entry, which the checker reads."""
    return Claim(claim, Status.PROVED, explanation, witness, {"claim": claim, **entry})


def follows(claim: str, explanation: str, witness: Mapping[str, Any] | None = None) -> Claim:
    """Return a claim that follows from a protocol's rules (see `Status`), for the reason `explanation`."""
    return Claim(claim, Status.FOLLOWS, explanation, witness)


def refuted(claim: str, explanation: str, witness: Mapping[str, Any], summary: str = "") -> Claim:
    """Return a refuted claim with the reason `explanation`, its counterexample `witness` and a short summary."""
    return Claim(claim, Status.REFUTED, explanation, witness, summary=summary)


def not_proved(claim: str, explanation: str) -> Claim:
    """Return a claim that is neither proved nor refuted, for the reason `explanation`."""
    return Claim(claim, Status.NOT_PROVED, explanation)


def fraction_above(value: float, bits: int = 32) -> Fraction:
    """Round a positive float up to a fraction of `bits` significant bits, as an upper bound for a certificate."""
    unit = Fraction(2) ** (frexp(value)[1] - bits)
    return ceil(Fraction(value) / unit) * unit


def upper(value: Fraction, digits: int = 6, *, power: int = 1) -> str:
    """Format an upper bound: the least decimal of `digits` digits that is not below value^(1/power).

    More digits are used if a bound below 1 would be printed as 1.
    """
    near = Context(prec=digits + 8).divide(Decimal(value.numerator), Decimal(value.denominator))
    number = Context(prec=digits, rounding=ROUND_CEILING).plus(near if power == 1 else near.sqrt(Context(digits + 8)))
    while Fraction(number) ** power < value:
        number = number.next_plus(Context(prec=digits))
    if number >= 1 > value:
        return upper(value, digits + 3, power=power)
    return f"{float(number):.{digits}g}" if digits < 16 else f"{number:f}"


def some(items: Sequence[int], limit: int = 12) -> str:
    """Format ranks as a set, `{0,1,2}`; of more than `limit` ranks only the first, and how many there are in all."""
    listed = [int(item) for item in items[:limit]]
    rest = f",… ({len(items)} in all)" if len(items) > limit else ""
    return "{" + ",".join(map(str, listed)) + rest + "}"
