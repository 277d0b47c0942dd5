"""The schedule of a run, from a value or from a file; what trains, deals data or adapts DDP all read it here.

What no run could notice by itself is said before the first step: workers that averaging never brings together.
"""

from __future__ import annotations

import os
from pathlib import Path

from partreduce.runtime.user_warning import warn_user
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule


def read_schedule(schedule: Schedule | str | Path) -> Schedule:
    """A schedule from a value or a file; the certificate that a file carries is checked before anything runs."""
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
        _check_name(str(schedule))
    loaded = load_schedule(path)
    if loaded.certificate:
        confirm(loaded)
    return loaded


def _check_name(path: str) -> None:
    """Say how a schedule is written that was named as the catalogue names it."""
    from partreduce.schedulers import registry

    name = path.partition("(")[0]
    if name in registry.names():
        raise InputError(
            f"schedule: {path!r} is no file, but a name of the catalogue; "
            f'`partreduce design CLUSTER --build "{path}" -o {name}.json` writes the file'
        )


def warn_of_workers_apart(schedule: Schedule) -> None:
    """Warn of a fixed schedule under which some workers never agree: they train alone, and no loss shows it.

    One sweep over a period's groups or edges, for one worker to say. What is not proved is not refuted: no word then.
    """
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
