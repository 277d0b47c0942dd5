"""Memory: which tensors of a model lie in the same one, and what of an expanded tensor is in memory at all.

Wrapping gives each parameter memory of its own. Two parameters, or a parameter and a buffer, that a script has let lie
in one memory would part then, and nothing would show it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch

from partreduce.runtime.averaging.shards import local
from partreduce.topo.errors import InputError


def stored(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor that are in memory: an expanded one (`mask.expand(8, n, n)`) repeats them.

    What is written into it is written into all repetitions.
    """
    if tensor.layout is not torch.strided or 0 not in tensor.stride():
        return tensor
    once = (slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())
    return tensor.detach()[tuple(once)]


class _Place(NamedTuple):
    """Where a tensor lies, in bytes; `last` is where its last number ends."""

    first: int
    last: int
    name: str
    tensor: torch.Tensor
    trains: bool


def check_shared_memory(model: torch.nn.Module) -> None:
    """Refuse a parameter that shares memory with another one, or with a buffer. O(n log n) for n tensors.

    Raises:
        InputError: naming both.
    """
    open_: list[_Place] = []
    for place in sorted(_places(model), key=lambda place: place[:2]):
        open_ = [one for one in open_ if one.last > place.first]
        for one in open_:
            if (one.trains or place.trains) and one.tensor is not place.tensor and _overlap(one, place):
                raise InputError(
                    f"model: {one.name} and {place.name} are two tensors in one memory, and wrapping would give each "
                    "its own, so that they part; let both modules hold one and the same parameter (b.weight = "
                    "a.weight), use the parameter itself in forward() (a.weight.t()), or make the other a copy"
                )
        open_.append(place)


def _places(model: torch.nn.Module) -> Iterator[_Place]:
    for kind, tensors in (("parameter", model.named_parameters()), ("buffer", model.named_buffers())):
        for name, whole in tensors:
            tensor = local(whole)
            if tensor.layout is torch.strided and tensor.numel() and not tensor.is_meta:
                reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
                first = tensor.data_ptr()
                last = first + (reach + 1) * tensor.element_size()
                yield _Place(first, last, f"{kind} {name!r}", tensor, kind == "parameter" and whole.requires_grad)


def _overlap(one: _Place, other: _Place) -> bool:
    """Whether two tensors whose places overlap have a number in common; columns of one array have none."""
    size = one.tensor.element_size()
    if other.tensor.element_size() != size:
        return True
    begin = min(one.first, other.first)
    marks = torch.zeros((max(one.last, other.last) - begin) // size, dtype=torch.bool, device="cpu")
    views = [
        marks.as_strided(place.tensor.shape, place.tensor.stride(), (place.first - begin) // size)
        for place in (one, other)
    ]
    stored(views[0]).fill_(True)
    return bool(stored(views[1]).any())
