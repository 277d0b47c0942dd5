"""Public functions that tie several packages together."""

from __future__ import annotations

from partreduce.schedulers import registry
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.cluster import load_cluster
from partreduce.topo.schedule import Schedule


def catalogue() -> list[str]:
    """The names that `design(..., using=NAME)` knows."""
    return registry.names()


def design(cluster: Cluster | str, *, using: str, **parameters: object) -> Schedule:
    """Build a schedule from the catalogue for a cluster.

    Args:
        cluster: a Cluster, a shorthand such as "4x4" or "3,3,2", or the path of a cluster file.
        using: a name from `catalogue()`.
        **parameters: the entry's own parameters, such as `every=4` for "allreduce".

    Raises:
        InputError: an unknown name or parameter (with the nearest known one), or a cluster that the entry cannot serve.
    """
    place = cluster if isinstance(cluster, Cluster) else load_cluster(cluster)
    return registry.build(using, place, **parameters)
