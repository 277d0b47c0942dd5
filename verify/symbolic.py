# ruff: noqa: ANN401 - sympy has no types
"""Run the code's own group function on symbols: one run stands for every number of nodes.

`topo.rule.group_of` and the functions it calls use nothing but +, −, ·, // and %. Their code objects, unchanged, are
executed on polynomials over the digits x_d of a node and the radices r_d, with three facts: r_d ≥ 2, 0 ≤ x_d < r_d, and
node = Σ x_d · (product of the radices after d). Sums and products are sympy's. A division or a remainder is answered
by one named step, *Euclidean division*: if a = q·s + r with integers q, r and 0 ≤ r < s, then a // s = q and a % s = r;
the side condition 0 ≤ r < s is proved for all values at once and recorded. `range(r_d)` yields generic elements.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from types import FunctionType
from typing import TYPE_CHECKING, Any

from preduce.topo import rule

if TYPE_CHECKING:
    from preduce.topo.rule import RulePhase


class UnprovedError(Exception):
    """A step that the symbolic run could not justify."""


@dataclass(frozen=True, slots=True)
class Step:
    """One Euclidean division with its side condition 0 <= remainder < divisor, proved for all radices and digits."""

    dividend: str
    divisor: str
    quotient: str
    remainder: str


@dataclass(slots=True)
class Facts:
    """What is known about the symbols, and the steps taken with it."""

    bound_of: dict[Any, Any] = field(default_factory=dict)
    radices: list[Any] = field(default_factory=list)
    steps: dict[Step, None] = field(default_factory=dict)
    known: dict[Any, tuple[Any, Any]] = field(default_factory=dict)

    def digit(self, name: str, radix: Any) -> Natural:
        """A new symbol between 0 and radix − 1."""
        import sympy

        symbol = sympy.Symbol(name, integer=True, nonnegative=True)
        self.bound_of[symbol] = radix
        return Natural(symbol, self)

    def is_nonnegative(self, expression: Any) -> bool:
        """Whether every coefficient is non-negative once each radix is written as 2 + y with y ≥ 0."""
        import sympy

        moved = sympy.expand(expression.subs({radix: radix + 2 for radix in self.radices}, simultaneous=True))
        return all(value >= 0 for value in moved.as_coefficients_dict().values())

    def divide(self, dividend: Any, divisor: Any) -> tuple[Any, Any]:
        """Quotient and remainder by Euclidean division, with the side condition proved.

        Raises:
            UnprovedError: 0 ≤ remainder < divisor could not be shown.
        """
        import sympy

        dividend, divisor = sympy.expand(dividend), sympy.sympify(divisor)
        # Members of a group share most divisions; a proof holds as long as the digits in it keep their bounds.
        key = (dividend, divisor, frozenset((s, self.bound_of.get(s)) for s in dividend.free_symbols))
        if key not in self.known:
            self.known[key] = self._prove_division(dividend, divisor)
        return self.known[key]

    def _prove_division(self, dividend: Any, divisor: Any) -> tuple[Any, Any]:
        """As `divide`, on an expanded dividend."""
        import sympy

        quotient, remainder = sympy.Integer(0), sympy.Integer(0)
        for term in sympy.Add.make_args(dividend):
            # Powers of one symbol cancel by themselves; only a sum as divisor needs the slow way.
            ratio = sympy.cancel(term / divisor) if divisor.has(sympy.Add) else term / divisor
            if sympy.denom(ratio) == 1:
                quotient += ratio
            else:
                remainder += term
        coefficients = remainder.as_coefficients_dict().values()
        # Non-negative coefficients and digits of degree one: the remainder is largest at the largest digits.
        degrees = [sympy.degree(remainder, digit) for digit in self.bound_of if remainder.has(digit)]
        largest = remainder.subs({digit: radix - 1 for digit, radix in self.bound_of.items()}, simultaneous=True)
        if (
            any(v < 0 for v in coefficients)
            or any(d > 1 for d in degrees)
            or not self.is_nonnegative(divisor - 1 - largest)
        ):
            raise UnprovedError(f"0 <= {remainder} < {divisor} is not shown, so ({dividend}) // ({divisor}) stays open")
        self.steps[Step(str(dividend), str(divisor), str(quotient), str(remainder))] = None
        return quotient, remainder


@dataclass(frozen=True, slots=True, eq=False)
class Natural:
    """An integer that is a polynomial over the symbols; supports exactly what the group function uses."""

    expression: Any
    facts: Facts

    def _with(self, other: Any, combine: Any) -> Natural:
        import sympy

        value = other.expression if isinstance(other, Natural) else other
        return Natural(sympy.expand(combine(self.expression, value)), self.facts)

    def __add__(self, other: Any) -> Natural:
        return self._with(other, lambda a, b: a + b)

    def __radd__(self, other: Any) -> Natural:
        return self._with(other, lambda a, b: b + a)

    def __sub__(self, other: Any) -> Natural:
        return self._with(other, lambda a, b: a - b)

    def __mul__(self, other: Any) -> Natural:
        return self._with(other, lambda a, b: a * b)

    def __rmul__(self, other: Any) -> Natural:
        return self._with(other, lambda a, b: b * a)

    def __floordiv__(self, other: Any) -> Natural:
        divisor = other.expression if isinstance(other, Natural) else other
        return Natural(self.facts.divide(self.expression, divisor)[0], self.facts)

    def __mod__(self, other: Any) -> Natural:
        divisor = other.expression if isinstance(other, Natural) else other
        return Natural(self.facts.divide(self.expression, divisor)[1], self.facts)

    def __eq__(self, other: object) -> bool:
        """Equal polynomials; whether two that differ may still meet for some values stays open.

        Raises:
            UnprovedError: the difference is not a constant.
        """
        difference = self._with(other, lambda a, b: a - b).expression
        if not difference.is_Integer:
            raise UnprovedError(f"whether {difference} is 0 depends on the digits")
        return bool(difference == 0)

    def __hash__(self) -> int:
        return hash(self.expression)


def _on_symbols(facts: Facts) -> dict[str, FunctionType]:
    """The functions of `topo.rule`, same code objects, in a name space where `range` understands symbols."""
    count = 0

    def generic_range(stop: Any) -> Any:
        nonlocal count
        if not isinstance(stop, Natural):
            return range(stop)
        count += 1
        # Any two elements of the range stand for all of them; one more pair a run shows that groups have two members.
        names = (f"v{count}", f"w{count}") if count == 1 else (f"v{count}",)
        return [facts.digit(name, stop.expression) for name in names]

    space: dict[str, Any] = {**vars(rule), "range": generic_range}
    names = ("strides_of", "digit_of", "representative", "nodes_of_group", "group_of")
    for name in names:
        original = getattr(rule, name)
        space[name] = FunctionType(original.__code__, space, name, original.__defaults__, original.__closure__)
    return {name: space[name] for name in names}


@lru_cache(maxsize=64)
def prove_identity(num_digits: int, size: int, phases: tuple[RulePhase, ...]) -> tuple[Step, ...]:
    """Show that `group_of` gives every member of a group the same group, for all radices ≥ 2.

    For each block and each local rank: the group of a general worker is exactly the set of workers whose node agrees
    with its node on the digits that the block does not average over and whose local rank is in the block; and the
    group of a general member of it is the same. Returns the divisions used.

    Raises:
        UnprovedError: an identity or a side condition that could not be shown.
    """
    import sympy

    facts = Facts()
    facts.radices = [sympy.Symbol(f"r{d}", integer=True, positive=True) for d in range(num_digits)]
    radices = [Natural(symbol, facts) for symbol in facts.radices]
    digits = [facts.digit(f"x{d}", symbol) for d, symbol in enumerate(facts.radices)]
    strides = [sympy.prod(facts.radices[d + 1 :]) for d in range(num_digits)]
    node = Natural(sum((x.expression * s for x, s in zip(digits, strides, strict=True)), sympy.Integer(0)), facts)
    for block in {block: None for phase in phases for block in phase}:
        kept = sum(
            (digits[d].expression * strides[d] for d in range(num_digits) if d not in block.across), sympy.Integer(0)
        )
        for local in block.local if len(block.local) > 1 or block.across else ():
            group = _on_symbols(facts)["group_of"](node * size + local, (block,), size, radices)
            _compare(facts, group.members, kept, strides=strides, block=block, size=size)
            for member in group.members:
                again = _on_symbols(facts)["group_of"](member, (block,), size, radices)
                _compare(facts, again.members, kept, strides=strides, block=block, size=size)
    return tuple(facts.steps)


def _compare(facts: Facts, members: Any, kept: Any, *, strides: list[Any], block: Any, size: int) -> None:
    """Members must be size · (kept + Σ generic element · stride over `across`) + rank, for each rank of the block."""
    import sympy

    ranks = set()
    for member in members:
        rest = sympy.expand(member.expression - size * kept)
        for d in sorted(block.across):
            used = [
                v
                for v, radix in facts.bound_of.items()
                if str(v)[0] in "vw" and radix == facts.radices[d] and rest.has(v)
            ]
            if len(used) != 1:
                raise UnprovedError(f"digit {d} of {member.expression} is not one free digit")
            rest = sympy.expand(rest - size * strides[d] * used[0])
        if not rest.is_Integer:
            raise UnprovedError(f"{member.expression} keeps {rest} beside the digits of its group")
        ranks.add(int(rest))
    if ranks != set(block.local):
        raise UnprovedError(f"the group holds the local ranks {sorted(ranks)}, the block {sorted(block.local)}")
