"""Lower bounds on the number of rounds to exact consensus. Each names itself: an answer says why it is best."""

from __future__ import annotations

from dataclasses import dataclass

from partreduce.topo.arithmetic.whole_numbers import ceil_log
from partreduce.topo.errors import InputError


@dataclass(frozen=True, slots=True)
class RoundsBound:
    """No schedule needs fewer than `rounds` (None: none exists at all); `name` is the argument that shows it."""

    rounds: int | None
    name: str


def pair_bound(num_workers: int) -> RoundsBound:
    """Rounds of pairs, relaxed by any real factors or not; the best of three arguments.

    log: ⌈log₂ n⌉, since in T rounds a value reaches at most 2^T workers. gossip parity: one more for odd n, where
    somebody idles in each round (Knödel 1975).
    full tree: n = 2^m − 1 with m ≥ 3 needs m + 2 and n = 2^m − 2 with m ≥ 4 needs m + 1, one more than the others say.
    There the paths from a worker fill a binary tree with at most one leaf to spare, so every weight on them is fixed,
    and two workers fix the same weight differently. Proof: docs/theory/exact-bounds.md.
    """
    refuse_senseless(num_workers, 2)
    best = RoundsBound(ceil_log(num_workers), "log")
    assert best.rounds is not None
    if num_workers % 2:
        best = RoundsBound(best.rounds + 1, "gossip parity")
    exponent = num_workers.bit_length()
    missing = (1 << exponent) - num_workers
    if (missing == 1 and exponent >= 3) or (missing == 2 and exponent >= 4):
        assert best.rounds is not None
        best = RoundsBound(best.rounds + 1, "full tree")
    return best


def refuse_senseless(num_workers: int, max_group: int) -> None:
    """Refuse numbers that make no sense.

    Raises:
        InputError: fewer than 2 workers, or groups of fewer than 2.
    """
    if num_workers < 2:
        raise InputError(f"num_workers: is {num_workers}; there is nobody to average with below 2 workers")
    if max_group < 2:
        raise InputError(f"max_group: is {max_group}; the smallest group has 2 workers")
