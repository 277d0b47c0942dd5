"""Define how a model's buffers are averaged: one table of rules for all strategies.

A rule depends on the buffer's type and name and on its module's class, so the handshake can compare the rules of all
workers. Only masks are also recognized by values (zeros and ones), once workers have compared or equalized these.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import torch

from partreduce.topo.errors import InputError

AVERAGED = (torch.float32, torch.float64, torch.bfloat16, torch.float16)  # dtypes that can be averaged
QUANTIZERS = ("ObserverBase", "FakeQuantizeBase")  # base classes by name, since torch and torchao each have their own


class BufferRule(StrEnum):
    """What an average does with a buffer: take the mean, copy the lowest rank's values, or leave it alone."""

    MEAN = "mean"  # each average of a group, and the mean model, take the mean
    FIRST = "first"  # both take the values of the group's lowest rank
    OWN = "own"  # each worker keeps its own values; the mean model takes those of the lowest rank
    CONSTANT = "constant"  # no worker sends it; the handshake compares it


class Kind(NamedTuple):
    """A kind of buffer, such as BatchNorm statistics: how to recognize it (`fits`), and the rule for it."""

    name: str
    fits: Callable[[str, torch.Tensor, torch.nn.Module], bool]
    rule: BufferRule


def _is_singular_vector(attribute: str, _buffer: torch.Tensor, module: torch.nn.Module) -> bool:
    if type(module).__name__ == "_SpectralNorm":
        return attribute in ("_u", "_v")
    hooks = [hook for hook in module._forward_pre_hooks.values() if type(hook).__name__ == "SpectralNorm"]  # noqa: SLF001 - torch has no public way
    return any(attribute in (f"{hook.name}_u", f"{hook.name}_v") for hook in hooks)  # type: ignore[attr-defined]


def _is_statistic(attribute: str, _buffer: torch.Tensor, module: torch.nn.Module) -> bool:
    return attribute.startswith("running_") or isinstance(module, torch.nn.modules.batchnorm._NormBase)  # noqa: SLF001 - as above


def _is_of_quantizer(_attribute: str, _buffer: torch.Tensor, module: torch.nn.Module) -> bool:
    return any(base.__name__ in QUANTIZERS for base in type(module).__mro__)


KINDS = (
    Kind("sparse", lambda _name, buffer, _module: buffer.layout is not torch.strided, BufferRule.CONSTANT),
    Kind("integer, bool, complex, float8", lambda _name, buffer, _module: buffer.dtype not in AVERAGED, BufferRule.OWN),
    Kind("of an observer or fake quantizer", _is_of_quantizer, BufferRule.OWN),
    Kind("vectors of `spectral_norm`", _is_singular_vector, BufferRule.FIRST),
    Kind("running statistics", _is_statistic, BufferRule.MEAN),
    Kind("masks, by name", lambda name, _buffer, _module: name == "mask" or name.endswith("_mask"), BufferRule.FIRST),
    Kind("other real numbers", lambda _name, _buffer, _module: True, BufferRule.MEAN),
)
"""The table of rules; the first kind that fits applies. A buffer of the last kind that has only zeros and ones is a
mask, which is copied."""


def buffer_kind(attribute: str, buffer: torch.Tensor, module: torch.nn.Module) -> Kind:
    """Return the row of the table `KINDS` for the buffer named `attribute` of a module."""
    return next(kind for kind in KINDS if kind.fits(attribute, buffer, module))


class Values(StrEnum):
    """Class of a buffer's values, to detect masks: zeros and ones, only one of these (`uniform`), or others."""

    MASK = "mask"  # zeros and ones
    UNIFORM = "uniform"  # only zeros, or only ones: a mask or new running statistics
    OTHER = "other"


def values_of(buffer: torch.Tensor) -> Values:
    """Classify the values of a buffer; waits for a CUDA device."""
    ones = buffer == 1
    if not buffer.numel() or not bool((ones | (buffer == 0)).all()):
        return Values.OTHER
    return Values.MASK if bool(ones.any()) and not bool(ones.all()) else Values.UNIFORM


AT_WRAPPING = "on all workers when DistributedOptimizer was made"
BEFORE = "before DistributedOptimizer is made"


class BufferSpec(NamedTuple):
    """Shape, dtype and layout that a buffer had when the model was wrapped, and must keep."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    layout: torch.layout

    @classmethod
    def of(cls, buffer: torch.Tensor) -> BufferSpec:
        return cls(tuple(buffer.shape), buffer.dtype, buffer.layout)


def change_of(buffer: torch.Tensor | None, spec: BufferSpec, rank: int, then: str = AT_WRAPPING) -> str:
    """Describe how a buffer differs from its `spec` and what the user can do about it; empty if it does not.

    All floating-point dtypes count as equal. The text names this worker's `rank`, and `then`, when the spec was taken.
    """
    if buffer is None:
        return f"was removed on worker {rank}, and was there {then}; keep it, or remove it on every worker {BEFORE}"
    if buffer.shape != spec.shape:
        return (
            f"has the shape {list(buffer.shape)} on worker {rank} now, and had {list(spec.shape)} {then}; keep its "
            f"size, or give it the new one on every worker {BEFORE}"
        )
    if buffer.layout is not spec.layout:
        now, was = ("sparse", "dense") if spec.layout is torch.strided else ("dense", "sparse")
        return (
            f"is {now} on worker {rank} now, and was {was} {then}; keep it {was}, or make it {now} on every worker "
            f"{BEFORE}"
        )
    if buffer.dtype is not spec.dtype and not (buffer.dtype in AVERAGED and spec.dtype in AVERAGED):
        return (
            f"is {buffer.dtype} on worker {rank} now, and was {spec.dtype} {then}; keep its dtype, or convert it on "
            f"every worker {BEFORE}"
        )
    return ""


def check_spec(name: str, buffer: torch.Tensor | None, spec: BufferSpec, rank: int, then: str = AT_WRAPPING) -> None:
    """Raise InputError, worded by `change_of` (also for `then`), if a buffer differs from worker `rank`'s `spec`."""
    if change := change_of(buffer, spec, rank, then):
        raise InputError(f"buffer {name!r}: {change}")
