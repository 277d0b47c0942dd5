"""Calls: before rows move, all workers tell each other what they are about to do, and stop together if they differ.

Collectives of which two workers mean different ones would exchange wrong rows, or wait for ever. So each operation on
tables begins with one small message from every worker to every other one, of a length that all know: what it does, for
which table, how many rows follow, and room for their numbers (see `wire`). A worker that found a mistake of its user
(an index out of range) says so there, and all raise the same line. A worker whose data ended takes part in whatever the
others do.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import torch


class Kind(IntEnum):
    """What a worker is about to do with its tables."""

    ANY = 0
    """Whatever the others do: its own data ended."""
    LOOKUP = 1
    REDUCE = 2
    STEP = 3
    NORM = 4
    WHOLE = 5


LENGTH = 8
"""Numbers of a call, before its counts."""
SAME = 5
"""The first of them, in which workers that do the same agree."""
PROBLEM, LONGEST = 5, 6
"""Places of whether there is a problem, and of the most that goes to one member: rows asked of it, or bytes brought."""


@dataclass(frozen=True, slots=True)
class Call:
    """What one worker does next; `value` is its part of a norm."""

    kind: Kind
    step: int = 0
    table: int = 0
    copy: int = 0
    """Which copy of the model, such as that of moving averages: 0 is the one that is trained."""
    trains: bool = False
    """Whether a lookup is to train, or the end of a step begins with clipping."""
    has_problem: bool = False
    value: float = 0.0

    def numbers(self) -> torch.Tensor:
        (value,) = struct.unpack("q", struct.pack("d", self.value))
        return torch.tensor([self.kind, self.step, self.table, self.copy, self.trains, self.has_problem, 0, value])

    @classmethod
    def read(cls, message: torch.Tensor) -> Call:
        """The call that was sent as these numbers."""
        kind, step, table, copy, trains, problem, _, number = message.tolist()
        (value,) = struct.unpack("d", struct.pack("q", number))
        return cls(Kind(kind), step, table, copy, bool(trains), bool(problem), value)

    def means_as(self, other: Call) -> bool:
        """Whether two workers do the same."""
        mine = (self.kind, self.step, self.table, self.copy, self.trains)
        return mine == (other.kind, other.step, other.table, other.copy, other.trains)

    def words(self, tables: Sequence[str]) -> str:
        """What the worker does, as the end of "worker 2 …"."""
        name = tables[self.table]
        if self.kind is Kind.LOOKUP:
            copy = f" in copy {self.copy} of the model" if self.copy else ""
            return f"looks up rows of {name!r}{copy} {'to train' if self.trains else 'without gradients'}"
        return {
            Kind.ANY: "has no data left",
            Kind.REDUCE: "exchanges the gradients of a backward pass",
            Kind.STEP: "clips gradients" if self.trains else "has finished its backward passes",
            Kind.NORM: "clips gradients",
            Kind.WHOLE: f"saves or spreads the rows of {name!r}",
        }[self.kind] + f" in step {self.step}"


@dataclass(slots=True)
class Met:
    """What all members of a group said."""

    members: tuple[int, ...]
    said: torch.Tensor
    """Their calls as numbers, int64 [members, LENGTH]."""
    counts: torch.Tensor
    """Their counts for this worker, int64 [members, tables]."""
    ids: torch.Tensor | None = None
    """The rows that they ask this worker for, member by member; None where these travel by themselves."""
    agreed: Call | None = field(init=False)
    """What all do, `ANY` where nobody has data left; None if they differ."""

    def __post_init__(self) -> None:
        """See what they agree on, once."""
        self.agreed = self._agreed()

    @property
    def calls(self) -> Mapping[int, Call]:
        return {rank: Call.read(row) for rank, row in zip(self.members, self.said, strict=True)}

    def _agreed(self) -> Call | None:
        first = self.said[0]
        if bool((self.said[:, :SAME] == first[:SAME]).all()):
            return Call.read(first)
        said = [call for call in self.calls.values() if call.kind is not Kind.ANY]
        if not all(call.means_as(said[0]) for call in said):
            return None
        return None if said[0].kind is Kind.WHOLE and len(said) < len(self.calls) else said[0]

    @property
    def without_data(self) -> Mapping[int, Call]:
        """The calls of those whose data ended, by rank."""
        kinds = self.said[:, 0].tolist()
        ended = (place for place, kind in enumerate(kinds) if kind == Kind.ANY)
        return {self.members[place]: Call.read(self.said[place]) for place in ended}

    @property
    def longest(self) -> int:
        """The most rows that a member asks of another one, or the most bytes that it brings to one."""
        return int(self.said[:, LONGEST].max())

    @property
    def with_problem(self) -> int | None:
        """The first worker that found a mistake of its user."""
        return next((rank for rank, one in zip(self.members, self.said[:, PROBLEM].tolist(), strict=True) if one), None)

    def difference(self, tables: Sequence[str]) -> str:
        """Who does something else than the others, in one line that is the same on all workers."""
        said = {rank: call for rank, call in self.calls.items() if call.kind is not Kind.ANY}
        usual = max(said.values(), key=lambda call: sum(call.means_as(other) for other in said.values()))
        rule = (
            "tables are exchanged synchronously: all workers do the same lookups and backward passes in the same order"
        )
        if all(call.means_as(usual) for call in said.values()):
            said = dict(self.calls)  # the one thing that a worker without data takes no part in
            rule = "all workers put whole tables together, so call state_dict() behind `with optimizer.join():`"
        odd, theirs = next((rank, call) for rank, call in said.items() if not call.means_as(usual))
        rank = next(rank for rank, call in said.items() if call.means_as(usual))
        return f"worker {odd} {theirs.words(tables)} while worker {rank} {usual.words(tables)}; {rule}"
