"""Columns: rows of several tables dealt out to the members of a group as one message each, and put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one table: their numbers, each once, and what is said of them, [rows, columns]; None in a request."""

    ids: torch.Tensor
    rows: torch.Tensor | None = None

    def taken(self, order: torch.Tensor) -> Part:
        """The same rows in another order, or some of them."""
        return Part(self.ids[order], None if self.rows is None else self.rows[order])

    def coalesced(self) -> Part:
        """Each row once, ascending, with the sum of all that is said of it, added in order."""
        ids, inverse = torch.unique(self.ids, return_inverse=True)
        if self.rows is None:
            return Part(ids)
        sums = self.rows.new_zeros((len(ids), *self.rows.shape[1:]))
        return Part(ids, sums.index_add_(0, inverse, self.rows))


Parts = dict[int, Part]
"""Rows by the index of their table."""


def by_member(part: Part, members: torch.Tensor, size: int) -> tuple[Part, torch.Tensor, torch.Tensor]:
    """The part in order of the member that each row goes to, that order, and how many go to each, int64 [size]."""
    order = torch.argsort(members, stable=True)
    return part.taken(order), order, torch.bincount(members, minlength=size)


def dealt(columns: Sequence[torch.Tensor], counts: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """All columns as bytes, first those for the first member, and how many bytes go to each.

    Args:
        columns: arrays of rows, each in order of members.
        counts: rows of each column for each member, int64 [members, columns].
    """
    raw = [column.contiguous().view(-1).view(torch.uint8) for column in columns]
    sizes = counts * torch.tensor([width_of(column) for column in columns])
    if len(columns) == 1:
        return raw[0], sizes[:, 0].tolist()
    pieces = [torch.split(column, size) for column, size in zip(raw, sizes.T.tolist(), strict=True)]
    message = [column[member] for member in range(len(counts)) for column in pieces]
    return torch.cat(message) if message else torch.empty(0, dtype=torch.uint8), sizes.sum(1).tolist()


def put_together(message: torch.Tensor, counts: torch.Tensor, like: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The columns of a message that came from all members in turn; the inverse of `dealt`, over what all sent.

    Args:
        message: bytes.
        counts: rows of each column from each member, int64 [members, columns].
        like: arrays with the columns' dtypes and widths.
    """
    sizes = counts * torch.tensor([width_of(column) for column in like])
    if len(like) == 1:
        raw = [message]
    else:
        pieces = torch.split(message, sizes.view(-1).tolist())
        raw = [torch.cat(pieces[column :: len(like)]) for column in range(len(like))]
    return [one.view(column.dtype).view(-1, *column.shape[1:]) for one, column in zip(raw, like, strict=True)]


def width_of(column: torch.Tensor) -> int:
    """Bytes of a row."""
    return column.element_size() * column.shape[1:].numel()


def asked_in(parts: Parts) -> torch.Tensor | None:
    """The rows that a lookup asks for; None in other operations."""
    return next((part.ids for part in parts.values() if part.rows is None), None)


def restored(rows: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    """Rows in the order that they had before they were put into `order`."""
    back = torch.empty_like(rows)
    back[order] = rows
    return back
