"""Coding: how one sum is written on the wire, and what its roundings left over for the next one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from partreduce.topo.strategies.axes import Codec, Transport

DTYPES = {Codec.FLOAT16: torch.float16, Codec.BFLOAT16: torch.bfloat16}


class Leftovers:
    """What roundings took from the numbers of one repeated sum: each is added to the same numbers of the next sum.

    Every place where this worker rounds (its own contribution; a shard's sum, which it hands out) has a name. The
    source of error feedback: Seide et al., Interspeech 2014; for both roundings, Tang et al., DoubleSqueeze, ICML 2019.
    """

    def __init__(self) -> None:
        self._kept: dict[str, torch.Tensor] = {}

    def add_to(self, place: str, values: torch.Tensor) -> None:
        """Add what the last rounding at this place left over, in place."""
        kept = self._kept.get(place)
        if kept is not None and kept.shape == values.shape:
            values.add_(kept)

    def keep(self, place: str, values: torch.Tensor, decoded: torch.Tensor) -> None:
        """Remember the difference between numbers and their code; zero where one of them is not finite."""
        kept = self._kept.get(place)
        if kept is None or kept.shape != values.shape:
            kept = self._kept[place] = torch.empty_like(values)
        torch.sub(values, decoded, out=kept)
        kept.nan_to_num_(0.0, 0.0, 0.0)

    def state(self) -> dict[str, torch.Tensor]:
        return dict(self._kept)

    def load(self, state: Mapping[str, torch.Tensor]) -> None:
        self._kept = {place: kept.clone() for place, kept in state.items()}


@dataclass(frozen=True, slots=True)
class Coding:
    """How one sum is coded."""

    transport: Transport
    leftovers: Leftovers | None = None

    @property
    def dtype(self) -> torch.dtype | None:
        """The dtype in which numbers travel; None where they travel as bytes."""
        return DTYPES.get(self.transport.codec)

    @property
    def in_blocks(self) -> bool:
        return self.transport.codec.has_blocks


class Codings:
    """The codings of the sums that one runner repeats, one for each bucket.

    Args:
        transport: what the schedule asks for.
        num_buckets: arrays of one operation.
    """

    def __init__(self, transport: Transport, num_buckets: int) -> None:
        self._transport, self._num_buckets = transport, num_buckets
        self.clear()

    @classmethod
    def of(cls, transport: Transport, num_buckets: int) -> Codings | None:
        """None where nothing is coded."""
        return None if transport.codec is Codec.NONE else cls(transport, num_buckets)

    def clear(self) -> None:
        """Forget what is left over: the run continues from other parameters, or among other workers.

        A sum that was given up may still be rounding in its thread; what it keeps is nobody's.
        """
        transport, number = self._transport, self._num_buckets
        self._leftovers = [Leftovers() for _ in range(number if transport.error_feedback else 0)]
        self.of_buckets = [Coding(transport, left) for left in self._leftovers] or [Coding(transport)] * number

    def state(self) -> dict[str, torch.Tensor]:
        """What is left over, for a checkpoint; one entry more, so that nothing left over is told from no feedback."""
        if not self._leftovers:
            return {}
        named = {"feedback": torch.ones(())}
        for index, left in enumerate(self._leftovers):
            named |= {f"feedback/{index}/{place}": kept for place, kept in left.state().items()}
        return named

    def load_state(self, state: Mapping[str, torch.Tensor]) -> None:
        for index, left in enumerate(self._leftovers):
            prefix = f"feedback/{index}/"
            left.load({n.removeprefix(prefix): kept for n, kept in state.items() if n.startswith(prefix)})
