"""The registry: every rule family and construction by name. A new one is one new file plus one line here."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from schedulers.entry import Entry, hint
from topo.errors import ScheduleError

if TYPE_CHECKING:
    from topo.cluster import Cluster
    from topo.schedule import Schedule

_MODULES = {
    # rules: phases for any number of nodes
    "prague-figure-10": "schedulers.rules.prague_figure_10",
    "prague-inter-intra": "schedulers.rules.prague_inter_intra",
    "allreduce": "schedulers.rules.allreduce",
    "local-sgd": "schedulers.rules.local_sgd",
    "node-then-all": "schedulers.rules.node_then_all",
    "pairs-pairs-all": "schedulers.rules.pairs_pairs_all",
    "hierarchy": "schedulers.rules.hierarchy",
    "rotating-heads": "schedulers.rules.rotating_heads",
    "node-digits": "schedulers.rules.node_digits",
    "hyper-cuboid": "schedulers.rules.hyper_cuboid",
    # constructions: fixed graphs
    "ring": "schedulers.constructions.ring",
    "ring-based": "schedulers.constructions.ring_based",
    "double-ring": "schedulers.constructions.double_ring",
    "hop-figure-21": "schedulers.constructions.hop_figure_21",
    "torus": "schedulers.constructions.torus",
    "grid": "schedulers.constructions.grid",
    "star": "schedulers.constructions.star",
    "complete": "schedulers.constructions.complete",
    "hypercube": "schedulers.constructions.hypercube",
    "exponential": "schedulers.constructions.exponential",
    "de-bruijn": "schedulers.constructions.de_bruijn",
    "kautz": "schedulers.constructions.kautz",
    "random-regular": "schedulers.constructions.random_regular",
    "erdos-renyi": "schedulers.constructions.erdos_renyi",
    "d-equistatic": "schedulers.constructions.d_equistatic",
    "u-equistatic": "schedulers.constructions.u_equistatic",
    # constructions: another graph or other groups each round
    "one-peer-hypercube": "schedulers.constructions.one_peer_hypercube",
    "one-peer-exponential": "schedulers.constructions.one_peer_exponential",
    "base-k-plus-1": "schedulers.constructions.base_k_plus_1",
    "simple-base-k-plus-1": "schedulers.constructions.simple_base_k_plus_1",
    "moshpit-grid": "schedulers.constructions.moshpit_grid",
    "random-partitions": "schedulers.constructions.random_partitions",
    "od-equidyn": "schedulers.constructions.od_equidyn",
    "ou-equidyn": "schedulers.constructions.ou_equidyn",
    "matcha": "schedulers.constructions.matcha",
    "sgp": "schedulers.constructions.sgp",
    "gossipgrad": "schedulers.constructions.gossipgrad",
    # analysis only
    "ceca-2p": "schedulers.constructions.ceca_2p",
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
