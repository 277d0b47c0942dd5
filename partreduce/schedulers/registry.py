"""Find entries of the catalogue by name."""

from __future__ import annotations

from partreduce.schedulers.catalogue.graphs import GRAPHS
from partreduce.schedulers.catalogue.outer_steps import OUTER_STEPS
from partreduce.schedulers.catalogue.rounds import PER_ROUND
from partreduce.schedulers.catalogue.rules import RULES
from partreduce.schedulers.entry import Entry, hint
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import ScheduleError, of_type
from partreduce.topo.schedule import Schedule

_ENTRIES: dict[str, Entry] = {row.name: row for row in (*RULES, *OUTER_STEPS, *GRAPHS, *PER_ROUND)}


def names() -> list[str]:
    """Return the names of all catalogue entries, in catalogue order."""
    return list(_ENTRIES)


def entry(name: str) -> Entry:
    """Return the catalogue entry with this name; raise ScheduleError for an unknown one."""
    of_type(name, str, "schedule family", "give a name; partreduce.catalogue() lists them")
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    if key not in _ENTRIES:
        suggestion = hint(key, _ENTRIES) or "; `partreduce design --list` lists them"
        raise ScheduleError(f"no schedule family {name!r}{suggestion}")
    return _ENTRIES[key]


def build(name: str, cluster: Cluster, **parameters: object) -> Schedule:
    """Build a catalogue entry with its `parameters` for a cluster; raise ScheduleError if it does not support these."""
    return entry(name).build(cluster, **parameters)
