"""The registry: every rule family and construction by name. A new one is one new file plus one line here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from preduce.schedulers.entry import Entry, hint
from preduce.topo.errors import ScheduleError

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule

_MODULES = {
    # rules: phases for any number of nodes
    "prague-figure-10": "preduce.schedulers.rules.prague_figure_10",
    "prague-inter-intra": "preduce.schedulers.rules.prague_inter_intra",
    "allreduce": "preduce.schedulers.rules.allreduce",
    "local-sgd": "preduce.schedulers.rules.local_sgd",
    "node-then-all": "preduce.schedulers.rules.node_then_all",
    "pairs-pairs-all": "preduce.schedulers.rules.pairs_pairs_all",
    "hierarchy": "preduce.schedulers.rules.hierarchy",
    "rotating-heads": "preduce.schedulers.rules.rotating_heads",
    "node-digits": "preduce.schedulers.rules.node_digits",
    "hyper-cuboid": "preduce.schedulers.rules.hyper_cuboid",
    # constructions: fixed graphs
    "ring": "preduce.schedulers.constructions.ring",
    "ring-based": "preduce.schedulers.constructions.ring_based",
    "double-ring": "preduce.schedulers.constructions.double_ring",
    "hop-figure-21": "preduce.schedulers.constructions.hop_figure_21",
    "torus": "preduce.schedulers.constructions.torus",
    "grid": "preduce.schedulers.constructions.grid",
    "star": "preduce.schedulers.constructions.star",
    "complete": "preduce.schedulers.constructions.complete",
    "hypercube": "preduce.schedulers.constructions.hypercube",
    "exponential": "preduce.schedulers.constructions.exponential",
    "de-bruijn": "preduce.schedulers.constructions.de_bruijn",
    "kautz": "preduce.schedulers.constructions.kautz",
    "random-regular": "preduce.schedulers.constructions.random_regular",
    "erdos-renyi": "preduce.schedulers.constructions.erdos_renyi",
    "d-equistatic": "preduce.schedulers.constructions.d_equistatic",
    "u-equistatic": "preduce.schedulers.constructions.u_equistatic",
    # constructions: another graph or other groups each round
    "one-peer-hypercube": "preduce.schedulers.constructions.one_peer_hypercube",
    "one-peer-exponential": "preduce.schedulers.constructions.one_peer_exponential",
    "base-k-plus-1": "preduce.schedulers.constructions.base_k_plus_1",
    "simple-base-k-plus-1": "preduce.schedulers.constructions.simple_base_k_plus_1",
    "moshpit-grid": "preduce.schedulers.constructions.moshpit_grid",
    "random-partitions": "preduce.schedulers.constructions.random_partitions",
    "od-equidyn": "preduce.schedulers.constructions.od_equidyn",
    "ou-equidyn": "preduce.schedulers.constructions.ou_equidyn",
    "matcha": "preduce.schedulers.constructions.matcha",
    "sgp": "preduce.schedulers.constructions.sgp",
    "gossipgrad": "preduce.schedulers.constructions.gossipgrad",
    # analysis only
    "ceca-2p": "preduce.schedulers.constructions.ceca_2p",
}


def names() -> list[str]:
    """All registered names, in catalogue order."""
    return list(_MODULES)


def modules() -> dict[str, str]:
    """The module that defines each name."""
    return dict(_MODULES)


def entry(name: str) -> Entry:
    """One entry; only its own module is imported.

    Raises:
        ScheduleError: the name is unknown; the message suggests the nearest ones.
    """
    key = name.strip().lower().replace("_", "-").replace(" ", "-")
    if key not in _MODULES:
        raise ScheduleError(
            f"no schedule family {name!r}{hint(key, _MODULES)}"
            + ("" if hint(key, _MODULES) else "; `preduce catalogue` lists them")
        )
    found = import_module(_MODULES[key]).ENTRY
    assert isinstance(found, Entry)
    return found


def build(name: str, cluster: Cluster, **parameters: object) -> Schedule:
    """The schedule `name` for a cluster. Rules cost the same for 4 nodes and for a million.

    Raises:
        ScheduleError: unknown name or parameter (with a suggestion), bad value, or no such schedule on this cluster.
    """
    return entry(name).build(cluster, **parameters)
