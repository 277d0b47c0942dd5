"""Sums ahead: what is begun before the operation that it belongs to is entered, since that one is late.

Such a sum is a guess that its generation lasts until then. It commits nothing and binds nobody: the operation waits
for it, hears that all members have it, and commits, as if it had been begun there. It ends with its generation. All
members of the next one begin the same sums again, in one order, when they are connected: so each group's sums stay in
one order.
"""

from __future__ import annotations

from dataclasses import dataclass

from partreduce.runtime.averaging.reducer import Reducer
from partreduce.runtime.averaging.reduction import Reduction

Sums = list[tuple[Reducer, Reduction]]


@dataclass(slots=True)
class _Ahead:
    sums: Sums
    is_waited: bool = False


class PrefetchedAllReduce:
    """One worker's sums of operations that it has still to come to, by keys that rise with these."""

    def __init__(self) -> None:
        self._all: dict[int, _Ahead] = {}

    def __contains__(self, key: int) -> bool:
        return key in self._all

    def put(self, key: int, sums: Sums) -> None:
        self._all[key] = _Ahead(sums)

    def wait(self, key: int) -> Sums:
        """Wait for the sums, once.

        Raises:
            UnavailableError: they failed.
        """
        ahead = self._all[key]
        if not ahead.is_waited:
            for reducer, reduction in ahead.sums:
                reducer.wait(reduction)
            ahead.is_waited = True
        return ahead.sums

    def take(self, key: int) -> Sums:
        """They are the operation's own from now on."""
        return self._all.pop(key).sums

    def lose(self, why: str) -> None:
        """Give all up, and let go of the connections whose end the others wait for."""
        for ahead in self._all.values():
            for reducer, reduction in ahead.sums:
                if not ahead.is_waited:
                    reducer.recorder.end(reduction.operation, f"failed: {why}")
            lose(ahead.sums)
        self._all.clear()


def lose(sums: Sums) -> None:
    """Something may still arrive in the arrays of a broken operation."""
    for _, reduction in sums:
        reduction.works.clear()
        for bucket, array in zip(reduction.buckets, reduction.arrays, strict=True):
            bucket.lose(array)
