"""The schedule of a run, from a value or from a file; what trains, deals data or adapts DDP all read it here."""

from __future__ import annotations

import os
from pathlib import Path

from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule


def read_schedule(schedule: Schedule | str | Path) -> Schedule:
    """A schedule from a value or a file; the certificate that a file carries is checked before anything runs.

    Raises:
        InputError: neither a value nor a path, or a catalogue's name where no such file is.
        DocumentError: the file is refused.
        RefutedError: an entry of its certificate does not hold.
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
        _refuse_name(str(schedule))
    loaded = load_schedule(path)
    if loaded.certificate:
        confirm(loaded)
    return loaded


def _refuse_name(path: str) -> None:
    """Say how a schedule is written that was named as the catalogue names it."""
    from partreduce.schedulers import registry

    name = path.partition("(")[0]
    if name in registry.names():
        raise InputError(
            f"schedule: {path!r} is no file, but a name of the catalogue; "
            f'`partreduce design CLUSTER --using "{path}" -o {name}.json` writes the file'
        )
