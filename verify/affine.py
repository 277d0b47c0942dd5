# ruff: noqa: ANN401 - values of any type stand in the code that is read
"""Integers that depend on symbols linearly: c + Σ aᵢ·xᵢ, each symbol with 0 ≤ xᵢ < its bound.

Enough for the digits of a node: sums, products with numbers, and division by a positive number, which is answered by
one step, *Euclidean division*: if a = q·s + r with integers q, r and 0 ≤ r < s, then a // s = q and a % s = r. The side
condition is decided from the bounds, so it holds for all values of the symbols at once. Whatever else is asked of such
a value is refused: above all whether it is true, or equals another.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence


class UnprovedError(Exception):
    """A step that could not be justified for all values of the symbols."""


@dataclass(frozen=True, slots=True, eq=False)
class Symbol:
    """A number of which only 0 ≤ value < bound is known. `orders`: whether comparisons may be decided by its bounds."""

    name: str
    bound: int
    orders: bool = False


@dataclass(frozen=True, slots=True)
class Affine:
    """constant + Σ factor · symbol; without symbols a number that code may compute with but not look at."""

    constant: int
    terms: tuple[tuple[Symbol, int], ...] = ()

    def __bool__(self) -> bool:
        """Refused.

        Raises:
            UnprovedError: always.
        """
        raise UnprovedError(f"whether {self} is true depends on the worker or the radices")

    def __str__(self) -> str:
        """As people write it."""
        return " + ".join([*(f"{factor}·{symbol.name}" for symbol, factor in self.terms), str(self.constant)])

    @property
    def least(self) -> int:
        """The smallest value that it takes."""
        return self.constant + sum(min(0, factor * (symbol.bound - 1)) for symbol, factor in self.terms)

    @property
    def most(self) -> int:
        """The largest value that it takes."""
        return self.constant + sum(max(0, factor * (symbol.bound - 1)) for symbol, factor in self.terms)

    def plus(self, other: Affine, times: int = 1) -> Affine:
        """The sum with `times` the other."""
        factors = dict(self.terms)
        for symbol, factor in other.terms:
            factors[symbol] = factors.get(symbol, 0) + times * factor
        terms = tuple((symbol, factor) for symbol, factor in factors.items() if factor)
        return Affine(self.constant + times * other.constant, terms)

    def times(self, other: Affine) -> Affine:
        """The product, if one of the two has no symbols.

        Raises:
            UnprovedError: both have some.
        """
        if self.terms and other.terms:
            raise UnprovedError(f"({self}) · ({other}) is not linear in the digits")
        many, one = (self, other) if self.terms else (other, self)
        factor = one.constant
        terms = tuple((symbol, factor * own) for symbol, own in many.terms) if factor else ()
        return Affine(factor * many.constant, terms)

    def divided(self, divisor: Affine) -> tuple[Affine, Affine]:
        """Quotient and remainder by Euclidean division, with the side condition proved.

        Raises:
            UnprovedError: 0 ≤ remainder < divisor does not follow from the bounds.
        """
        if divisor.terms or divisor.constant < 1:
            raise UnprovedError(f"a division by {divisor}, which is no positive number")
        by = divisor.constant
        whole, rest = divmod(self.constant, by)
        quotient = Affine(whole, tuple((symbol, factor // by) for symbol, factor in self.terms if factor % by == 0))
        remainder = Affine(rest, tuple((symbol, factor) for symbol, factor in self.terms if factor % by))
        if remainder.least < 0 or remainder.most >= by:
            raise UnprovedError(f"0 <= {remainder} < {by} does not hold for all digits, so ({self}) // {by} stays open")
        return quotient, remainder

    def replaced(self, old: Symbol, new: Symbol) -> Affine:
        """With another symbol in place of one."""
        return Affine(self.constant, tuple((new if symbol is old else symbol, f) for symbol, f in self.terms))


@dataclass(frozen=True, slots=True)
class Loop:
    """`body` once for every value of the symbol from 0 to bound − 1, in this order: a part of a `Listed`."""

    symbol: Symbol
    body: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Listed:
    """A sequence of which some parts are loops; one without loops is a plain tuple instead.

    `is_tuple`: whether the code made a tuple of it, as the members of a group are.
    """

    items: tuple[object, ...]
    is_tuple: bool = False

    def __bool__(self) -> bool:
        """Refused.

        Raises:
            UnprovedError: always.
        """
        raise UnprovedError("whether a sequence as long as a radix is empty")

    def __len__(self) -> int:
        """Refused.

        Raises:
            UnprovedError: always.
        """
        raise UnprovedError("the length of a sequence as long as a radix")


@dataclass(frozen=True, slots=True)
class GroupRead:
    """What a call of `Group` was given."""

    members: Any
    relax: Any


def refuse(what: str) -> UnprovedError:
    """The error that names what stands outside the language."""
    return UnprovedError(f"{what} is outside the part of Python that is read")


def settled(items: Sequence[Any]) -> Any:
    """A plain tuple if no item is a loop."""
    return Listed(tuple(items)) if any(isinstance(item, Loop) for item in items) else tuple(items)


def is_plain(value: Any) -> bool:
    """Whether a value is a number, a fraction, a string, None, or a tuple of such: the same for all workers."""
    if type(value) is tuple:
        return all(is_plain(item) for item in value)
    return value is None or type(value) in (int, bool, str, Fraction)


def as_affine(value: Any) -> Affine:
    """A number as an affine one.

    Raises:
        UnprovedError: it is none.
    """
    if isinstance(value, Affine):
        return value
    if type(value) is int:
        return Affine(value)
    raise refuse(f"arithmetic with {type(value).__name__}")


def renamed(item: Any, old: Symbol, new: Symbol) -> Any:
    """A value with one symbol for another."""
    if isinstance(item, Affine):
        return item.replaced(old, new)
    if isinstance(item, Loop):
        return Loop(item.symbol, tuple(renamed(part, old, new) for part in item.body))
    if isinstance(item, Listed):
        return Listed(tuple(renamed(part, old, new) for part in item.items), item.is_tuple)
    if type(item) is tuple:
        return tuple(renamed(part, old, new) for part in item)
    if is_plain(item):
        return item
    raise refuse(f"a loop over {type(item).__name__}")
