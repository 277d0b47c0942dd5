"""Claim `membership`, for rules: the function that a worker evaluates at run time finds the group of its block.

A worker finds its group by digits: it divides the index of its node by the weight of a digit, and takes the remainder
by the radix. *Euclidean division:* if a = q·s + r with integers and 0 ≤ r < s, then a // s = q and a % s = r. In mixed
radix the weight s of digit d is the product of the radices behind it. So the digits 0 … d make up the quotient, the
digits behind d the remainder, and 0 ≤ r < s holds for all values of the digits.

*What this check confirms* is that the entry names exactly the divisions that the blocks of this rule need, each with
its quotient and remainder as above. *It assumes* that the installed function performs these divisions. That it does is
shown by the prover, which runs the function itself on symbols (verify/symbolic.py); the checker holds no copy of it.
`conflict-free` confirms the blocks, without any function.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..refusal import confirm, confirm_equal

if TYPE_CHECKING:
    from ..schedule import Schedule

EVALUATED_NODES = 64
"""Every worker of every cluster of up to so many nodes was evaluated besides: a statement of the prover, repeated."""


def check(schedule: Schedule, entry: dict[str, Any], place: str) -> None:
    """`digits`, `across`, `steps` (one division for each digit of any block), `to`."""
    confirm(schedule.form == "rule", place, "membership", "a rule; explicit groups are read from one list")
    num_digits = len(schedule.radices)
    across = sorted({tuple(block.across) for phase in schedule.phases for block in phase})
    used = sorted({digit for digits in across for digit in digits})
    steps = [{"digit": d, "quotient": list(range(d + 1)), "remainder": list(range(d + 1, num_digits))} for d in used]
    confirm_equal(f"{place}.digits", entry["digits"], num_digits)
    confirm_equal(f"{place}.across", entry["across"], list(map(list, across)))
    confirm_equal(f"{place}.steps", entry["steps"], steps)
    confirm_equal(f"{place}.to", entry["to"], EVALUATED_NODES)
