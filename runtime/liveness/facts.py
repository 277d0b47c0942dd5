"""Facts: what all workers of a run must have in common, as the handshake compares it."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from preduce.topo.schedule import Schedule

if TYPE_CHECKING:
    from preduce.runtime.averaging.flat_model import BufferPolicy, FlatModel, StatePolicy


def read_schedule(schedule: Schedule | str | Path) -> Schedule:
    """A schedule from a value or a file; the certificate that a file carries is checked before anything runs.

    Raises:
        DocumentError: the file is refused.
        RefutedError: an entry of its certificate does not hold.
    """
    if isinstance(schedule, Schedule):
        return schedule
    from preduce.topo.document.schedule import load_schedule
    from preduce.verify.certificate import confirm

    loaded = load_schedule(Path(schedule))
    if loaded.certificate:
        confirm(loaded)
    return loaded


def facts_of(
    schedule: Schedule, flat: FlatModel, optimizer: torch.optim.Optimizer, buffers: BufferPolicy, state: StatePolicy
) -> tuple[dict[str, str], dict[str, list[str]]]:
    """(field → value, field → the lines behind it) for `handshake`."""
    from preduce.topo.document.canonical import schedule_sha256

    layout = flat.layout()
    digest = hashlib.sha256("\n".join(layout).encode()).hexdigest()
    facts = {
        "schedule": f"{schedule.name!r} (sha256 {schedule_sha256(schedule)[:16]})",
        "model": f"{len(layout)} tensors (sha256 {digest[:16]})",
        "optimizer": type(optimizer).__name__,
        "buffers": buffers.value,
        "optimizer_state": state.value,
        "torch version": torch.__version__,
        "preduce version": preduce_version(),
    }
    return facts, {"model": layout}


@cache
def preduce_version() -> str:
    """The installed version, `unknown` when the source tree runs without being installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("preduce")
    except PackageNotFoundError:
        return "unknown"
