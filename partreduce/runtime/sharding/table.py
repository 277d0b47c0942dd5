"""Define a separately placed embedding table: the owners of its rows, and how rows get to the host and are coded.

Rows and their numbers are exchanged in host memory (over gloo), since only the host knows which worker requested which
row. From a CUDA device, a copy into pinned memory is queued in the current stream, and the host waits for an event
after it; copies back from pinned memory are queued the same way.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch

from partreduce.runtime.codecs import DTYPES, quantize
from partreduce.runtime.transport.streams import Marker, Streams, await_mark, streams_of
from partreduce.topo.codec_numbers import LARGEST
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.axes import Codec
from partreduce.topo.strategies.payload import Gradient, Payload, TablePlacement

Embeddings = torch.nn.Embedding | torch.nn.EmbeddingBag

DEVICES = ("cpu", "cuda")  # device types of tables
BLOCK_BYTES = 4 * 2**20  # whole tables are sent in blocks of about this size, so that no worker holds a whole one
COARSER = {Codec.FLOAT16: "bfloat16 or int8"}  # for each codec, others with a wider range


class Layout(Protocol):
    """Assignment of a table's rows to workers: which worker owns a row, and the row's index in the owner's array."""

    def owner_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the rank that owns each of these rows, int64."""

    def place_of(self, rows: torch.Tensor) -> torch.Tensor:
        """Return each row's index in the array of its owner, int64."""


@dataclass(frozen=True, slots=True)
class RowLayout:
    """Assignment of a table's rows to hosts, the workers that own rows, in `partitions` parts.

    With P parts and H hosts, row r is in part r mod P, and part p on host p mod H. A host's rows are in ascending
    order. Host h has K = ⌈(P − h)/H⌉ of the P parts, so row r = qP + h + jH has index qK + j in its array.
    """

    num_rows: int
    hosts: tuple[int, ...]
    partitions: int

    @classmethod
    def of(cls, routes: Payload, route: TablePlacement, num_workers: int) -> RowLayout:
        return cls(route.rows, routes.hosts(route, num_workers), routes.partitions(route, num_workers))

    def owner_of(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.tensor(self.hosts)[rows % self.partitions % len(self.hosts)]

    def place_of(self, rows: torch.Tensor) -> torch.Tensor:
        num_hosts = len(self.hosts)
        part = rows % self.partitions
        host = part % num_hosts
        parts_of_host = (self.partitions - host + num_hosts - 1) // num_hosts
        return rows // self.partitions * parts_of_host + part // num_hosts

    def rows_of(self, worker: int) -> torch.Tensor:
        """Return the numbers of the rows that a worker owns, ascending, int64."""
        if worker not in self.hosts:
            return torch.empty(0, dtype=torch.int64)
        parts = torch.arange(self.hosts.index(worker), self.partitions, len(self.hosts))
        turns = torch.arange(0, self.num_rows, self.partitions)
        rows = (turns[:, None] + parts[None, :]).view(-1)  # [turns · parts], ascending
        return rows[rows < self.num_rows]


@dataclass(frozen=True, slots=True)
class OnFirst:
    """Layout in which worker 0 owns all rows, such as those of a file that it reads; `place_of` gives their index."""

    place_of: Callable[[torch.Tensor], torch.Tensor]

    def owner_of(self, rows: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(rows)


@dataclass(frozen=True, slots=True)
class Part:
    """Some rows of one table: their numbers `ids`, and their values [rows, columns], None in a request for rows."""

    ids: torch.Tensor
    rows: torch.Tensor | None = None

    def taken(self, order: torch.Tensor) -> Part:
        return Part(self.ids[order], None if self.rows is None else self.rows[order])

    def coalesced(self) -> Part:
        """Return each row once, in ascending order; values of a row that occurs more than once are summed."""
        ids, inverse = torch.unique(self.ids, return_inverse=True)
        if self.rows is None:
            return Part(ids)
        sums = self.rows.new_zeros((len(ids), *self.rows.shape[1:]))
        return Part(ids, sums.index_add_(0, inverse, self.rows))


Parts = dict[int, Part]  # rows by the index of their table


@dataclass(frozen=True, slots=True)
class RowCode:
    """Codec for rows of one table, or for their gradients; decoded rows have the table's `dtype`.

    Each row is coded separately and rounded to nearest, so all workers that decode it get the same bits. int8 has one
    float32 scale per row, after its integers.
    """

    codec: Codec
    columns: int
    dtype: torch.dtype

    def encode(self, rows: torch.Tensor) -> torch.Tensor:
        """Return the encoded rows [rows, columns] as uint8 [rows, bytes per row]."""
        if self.codec is not Codec.INT8:
            return rows.to(DTYPES[self.codec]).contiguous().view(torch.uint8)
        values = rows.to(torch.float32).contiguous()
        levels, scales = torch.empty(values.shape, dtype=torch.int8), torch.empty(len(values))
        quantize(values, levels, scales, torch.empty_like(values))
        return torch.cat([levels.view(torch.uint8), scales[:, None].view(torch.uint8)], dim=1)

    def decode(self, code: torch.Tensor) -> torch.Tensor:
        if self.codec is not Codec.INT8:
            return code.contiguous().view(DTYPES[self.codec]).to(self.dtype)
        levels, scales = code[:, : self.columns].view(torch.int8), code[:, self.columns :]
        # A copy, since float32 values must be aligned to four bytes.
        scales = scales.clone(memory_format=torch.contiguous_format).view(torch.float32)  # [rows, 1]
        return (levels.to(torch.float32) * scales).to(self.dtype)

    def lost(self, rows: torch.Tensor, code: torch.Tensor) -> float | None:
        """Return the largest finite value that decodes to infinity (int8: its row decodes to NaN), or None."""
        if not rows.numel():
            return None
        least, most = (float(end) for end in torch.aminmax(rows))
        if -least <= LARGEST[self.codec.value] >= most:  # False for NaN
            return None
        finite = torch.isfinite(rows)
        if self.codec is Codec.INT8:
            finite &= finite.all(1, keepdim=True)
        beyond = rows[finite & ~torch.isfinite(self.decode(code))]
        return float(beyond.abs().max()) if len(beyond) else None

    def problem(self, name: str, what: str, rows: torch.Tensor, code: torch.Tensor) -> str:
        """Describe, for an error, a value of `rows` beyond the codec's range; empty if there is none.

        `name` is the table's name, `what` describes the rows, `code` has the encoded rows.
        """
        if (number := self.lost(rows, code)) is None:
            return ""
        others = COARSER.get(self.codec, "none")
        return (
            f"parameter {name!r}: {what} has {number:g}, beyond the largest number {LARGEST[self.codec.value]:g} of "
            f"its route's codec {self.codec}; use the codec {others}, or keep its numbers smaller"
        )


class Landing(NamedTuple):
    """A copy from a device to host memory that may still be in progress."""

    values: torch.Tensor
    mark: Marker | None = None

    def wait(self) -> torch.Tensor:
        """Wait until the copy is complete and return it; later work in the stream may go ahead."""
        if self.mark is not None:
            await_mark(self.mark)
        return self.values


class Staging:
    """Copies arrays between host and device, in the order of the device's current stream."""

    def __init__(self, streams: Callable[[torch.device], Streams] = streams_of) -> None:
        self._streams = streams

    def begin(self, values: torch.Tensor) -> Landing:
        """Start copying an array to the host after the work queued in the current stream; the result waits for it."""
        streams = self._streams(values.device)
        if not streams.runs_ahead:
            return Landing(values)
        return Landing(streams.download(values.detach()), streams.mark())

    def to_host(self, values: torch.Tensor) -> torch.Tensor:
        return self.begin(values).wait()

    def to_device(self, values: torch.Tensor, device: torch.device) -> torch.Tensor:
        """Return a copy of a host array for use in the device's current stream; on CPU the array itself."""
        streams = self._streams(device)
        return streams.stage(values, device) if streams.runs_ahead else values


@dataclass(eq=False)
class Table:
    """One separately placed embedding parameter, as one worker holds it; `route` is its placement by the schedule.

    If sharded, the parameter holds only this worker's rows, otherwise all. Parameter, gradient and optimizer state are
    on one device; row numbers, and rows to send, on the host. Gradients are summed or, if `average`, averaged.
    """

    index: int
    route: TablePlacement
    parameter: torch.nn.Parameter
    modules: tuple[Embeddings, ...]
    num_workers: int
    average: bool
    layout: RowLayout | None  # None if every worker has all rows
    own: torch.Tensor | None = None  # this worker's rows, ascending, once the table is sharded
    staging: Staging = field(default_factory=Staging)
    pending: list[tuple[torch.Tensor, Landing]] = field(default_factory=list)  # (rows, gradients), not yet exchanged
    copies: list[weakref.ref[Embeddings]] = field(default_factory=list)  # modules in copies of the model; 0 is trained

    @property
    def name(self) -> str:
        return self.route.parameter

    @property
    def is_sharded(self) -> bool:
        return self.layout is not None

    @cached_property
    def code(self) -> RowCode | None:
        """The codec of the table's rows; None if they are sent uncoded."""
        codec = self.route.codec
        return RowCode(codec, self.route.columns, self.parameter.dtype) if codec.rounds else None

    def blocks(self) -> list[tuple[int, int]]:
        """Return (first row, last row + 1) of each block in which a whole table is sent; equal on all workers."""
        width = max(1, self.route.columns * self.parameter.element_size())
        size = max(1, BLOCK_BYTES // width)
        return [(first, min(first + size, self.route.rows)) for first in range(0, self.route.rows, size)]

    def nothing(self) -> Part:
        return Part(torch.empty(0, dtype=torch.int64), torch.empty(0, self.route.columns, dtype=self.parameter.dtype))

    def placed(self, rows: torch.Tensor) -> torch.Tensor:
        return rows if self.layout is None else self.layout.place_of(rows)

    def put(self, array: torch.Tensor, ids: torch.Tensor, rows: torch.Tensor) -> None:
        """Write `rows`, host values of the rows numbered `ids`, into `array`, which is sharded like the table."""
        places = self.staging.to_device(self.placed(ids), array.device)
        array[places] = self.staging.to_device(rows, array.device)

    def taken(self) -> Part | None:
        """Return and forget the gradients of rows looked up in a backward pass, each row once; None if none were."""
        if not self.pending:
            return None
        passed, self.pending = self.pending, []
        rows = [landing.wait() for _, landing in passed]
        if len(rows) == 1:
            return Part(passed[0][0], rows[0])
        return Part(torch.cat([ids for ids, _ in passed]), torch.cat(rows)).coalesced()

    def add(self, part: Part) -> None:
        """Add `part`, gradients summed over all workers, to the parameter's gradient, or their mean if `average`."""
        parameter, rows = self.parameter, part.rows
        if not parameter.requires_grad:
            return
        assert rows is not None, "gradients have rows"
        if self.average:
            rows = rows / self.num_workers
        places = self.staging.to_device(self.placed(part.ids), parameter.device)
        rows = self.staging.to_device(rows, parameter.device)
        old = parameter.grad
        if self.route.gradient is Gradient.SPARSE:
            new = torch.sparse_coo_tensor(
                places[None, :], rows, parameter.shape, is_coalesced=True, check_invariants=False
            )
            parameter.grad = new if old is None else (old + new).coalesce()
        elif old is None:
            dense = torch.zeros_like(parameter, requires_grad=False)
            dense.index_add_(0, places, rows)
            if self.is_sharded:
                dense = dense.as_subclass(ShardGradient)
                dense.table = self.name
            parameter.grad = dense
        else:
            old.index_add_(0, places, rows)

    def shard_of(self, whole: torch.Tensor) -> torch.Tensor:
        return whole if self.own is None else whole[self.own]

    def is_whole(self, value: Any) -> bool:  # noqa: ANN401 - whatever a state holds
        """Return whether a value is a tensor with the shape of the whole table."""
        return isinstance(value, torch.Tensor) and tuple(value.shape) == (self.route.rows, self.route.columns)


_NORMS = (torch._foreach_norm, torch.linalg.vector_norm)  # noqa: SLF001 - called by torch.nn.utils.clip_grad_norm_


class ShardGradient(torch.Tensor):
    """Gradient of a sharded table; torch's `clip_grad_norm_` raises InputError for it, as it would see only a shard."""

    table: str  # the parameter's name

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:  # noqa: ANN401 - whatever the function returns
        """Raise InputError for norms, as in `clip_grad_norm_` and `get_total_norm`; run all other functions."""
        if func in _NORMS:
            first = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
            name = next((one.table for one in first if isinstance(one, ShardGradient)), "?")
            raise InputError(
                f"parameter {name!r}: its rows are spread over the workers, so torch's clip_grad_norm_ would clip by "
                "another norm on each; call partreduce.clip_grad_norm_ instead, with the same arguments"
            )
        with torch._C.DisableTorchFunctionSubclass():  # noqa: SLF001 - torch's documented way
            return func(*args, **(kwargs or {}))
