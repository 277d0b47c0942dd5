"""Claims `doubly-stochastic` and `unit-sums`: averaging neither moves the mean nor weighs anyone negatively."""

from __future__ import annotations

from collections.abc import Iterable

from partreduce.topo.strategies import Round
from partreduce.verify.base import Claim, not_proved, refuted
from partreduce.verify.stated import Numbers, Stated

DOUBLY = "doubly-stochastic"
SUMS = "unit-sums"


def sums_of_groups(stated: Stated) -> Claim:
    """That every mixing matrix has unit row and column sums, and whether an entry is negative.

    Where one is the claim made is `unit-sums` instead, which is what the mean needs.
    """
    return _sums(stated, "Every group's weights are symmetric and each row sums to 1, so rows and columns sum to 1")


def _sums(stated: Stated, text: str) -> Claim:
    def words(numbers: Numbers) -> str:
        smallest = numbers["smallest_weight"]
        kept = "the mean is kept although a weight is negative" if smallest.startswith("-") else "none is negative"
        return f"{text}; the smallest weight is {smallest}, so {kept}."

    return stated.claim(DOUBLY, words) or stated.claim(SUMS, words) or not_proved(DOUBLY, "a column does not sum to 1.")


def sums_of_graph(rounds: Iterable[Round], stated: Stated) -> Claim:
    """The same for weighted graphs: rows sum to 1 because each worker keeps the rest; a column may not."""
    for t, listed in enumerate(rounds):
        for worker, surplus in sorted(listed.surplus().items()):
            text = (
                f"in round {t} the weights that others give to worker {worker}, and its own, sum to {1 + surplus}, not "
                "to 1: the mean of the parameters moves."
            )
            return refuted(DOUBLY, text, {"round": t, "worker": worker, "column_sum": str(1 + surplus)})
    return _sums(stated, "Rows sum to 1 by construction and columns by exact addition")
