"""Check the arguments that scripts pass to the runtime; errors name the argument, its value, the rule and a remedy."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import torch
from torch.distributed.device_mesh import DeviceMesh

from partreduce.runtime.transport.worlds import World
from partreduce.runtime.user_warning import warn_user
from partreduce.topo.errors import InputError, of_type
from partreduce.topo.schedule import Schedule

LONGEST_TIMEOUT = 1e9  # seconds, which is 30 years: beyond, torch's own deadlines overflow


def checked_timeout(timeout: float) -> float:
    """Return a timeout in seconds as a float. Raises InputError unless it is above 0 and at most 1e9."""
    is_number = isinstance(timeout, (int, float)) and not isinstance(timeout, bool)
    if not is_number or not 0 < timeout <= LONGEST_TIMEOUT:
        raise InputError(
            f"timeout: is {timeout!r}; it is a number of seconds above 0, up to {LONGEST_TIMEOUT:.0f}, such as 300"
        )
    return float(timeout)


def checked_number(place: str, value: float | torch.Tensor) -> float:
    """Return a number or one-element tensor as a float. Raises InputError, which names `place`, for anything else."""
    try:
        given = value if isinstance(value, torch.Tensor) else torch.as_tensor(value, dtype=torch.float64)
        return float(given.detach())
    except (TypeError, ValueError, RuntimeError):
        raise InputError(f"{place}: is {str(value)[:40]!r}; give one number, or a tensor that holds one") from None


def checked_choice(place: str, value: str, choices: Iterable[str]) -> str:
    """Return `value`. Raises InputError, which names the argument `place`, unless it is one of `choices`."""
    names = [str(choice) for choice in choices]
    if value not in names:
        raise InputError(f"{place}: {value!r} is not one of {', '.join(names)}")
    return value


def checked_directory(place: str, path: str | Path | None) -> Path | None:
    """Return `path` as a Path, or None; it need not exist. Raises InputError, which names `place`, for a file."""
    if path is None:
        return None
    found = Path(of_type(path, (str, os.PathLike), place, "give the path of a directory"))
    if found.exists() and not found.is_dir():
        raise InputError(f"{place}: {found} is a file; give the path of a directory")
    return found


def checked_world(world: World | None) -> World | None:
    """Return `world` if it is a World or None. Raises InputError otherwise."""
    if world is not None and not hasattr(world, "next_instance"):
        raise InputError(f"world: is {str(world)[:40]!r}; leave it out, and the launcher's environment says it")
    return world


def checked_mesh(mesh: DeviceMesh | None, world: World | None) -> DeviceMesh | None:
    """Return `mesh`. Raises InputError unless it is None, or a one-dimensional DeviceMesh while `world` is None."""
    if mesh is None:
        return None
    of_type(mesh, DeviceMesh, "mesh", 'pass a DeviceMesh\'s dimension, mesh["dp_replicate"]')
    if mesh.ndim != 1:
        dims = ", ".join(mesh.mesh_dim_names or ()) or "without names"
        raise InputError(
            f'mesh: has {mesh.ndim} dimensions ({dims}); pass the one that holds the replicas, mesh["dp_replicate"]'
        )
    if world is not None:
        raise InputError("mesh: says how to reach the other replicas, and so does world=; leave one of the two out")
    return mesh


def checked_steps(saved: object) -> int:
    """Return the number of steps in `saved`, a state dict's entry `partreduce`. Raises InputError if there is none."""
    steps = saved.get("steps") if isinstance(saved, dict) else None
    if not isinstance(steps, int) or isinstance(steps, bool) or not 0 <= steps < 2**53:
        raise InputError(
            f"load_state_dict: 'partreduce' is {str(saved)[:80]!r}; it holds steps, a whole number >= 0: load what "
            "optimizer.state_dict() returned, or leave 'partreduce' out to keep this run's count"
        )
    return steps


def read_schedule(schedule: Schedule | str | Path) -> Schedule:
    """Return a Schedule, or load one from a schedule file and check the certificate in it.

    Raises InputError for another type or the name of a catalogue entry, FileError or DocumentError for a bad file, and
    RefutedError if the certificate does not hold.
    """
    if isinstance(schedule, Schedule):
        return schedule
    if not isinstance(schedule, (str, os.PathLike)):
        raise InputError(
            f"schedule: is a {type(schedule).__name__}; pass the path of a schedule file, or a Schedule: "
            "partreduce.files.parse_schedule(data) reads one from bytes"
        )
    from partreduce.topo.document.schedule import load_schedule
    from partreduce.verify.certificate import confirm

    path = Path(schedule)
    if not path.exists():
        from partreduce.schedulers import registry

        if (name := str(schedule).partition("(")[0]) in registry.names():
            raise InputError(
                f"schedule: {str(schedule)!r} is no file, but a name of the catalogue; "
                f'`partreduce design CLUSTER --build "{schedule}" -o {name}.json` writes the file'
            )
    loaded = load_schedule(path)
    if loaded.certificate:
        confirm(loaded)
    return loaded


def warn_of_workers_apart(schedule: Schedule) -> None:
    """Warn if the schedule cannot reach consensus, since some workers never average with others."""
    if not schedule.is_mixing or schedule.strategy.averages_everyone:
        return
    from partreduce.verify.base import Status
    from partreduce.verify.consensus import by_tree_or_apart, prove_consensus

    claim = by_tree_or_apart(schedule) if schedule.strategy.graphs else prove_consensus(schedule)
    if claim is not None and claim.status is Status.REFUTED:
        warn_user(
            f"schedule {schedule.name!r}: {claim.explanation} Training continues; `partreduce verify` refutes it, "
            "`partreduce design` finds one that all workers meet in"
        )
