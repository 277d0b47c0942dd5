"""Local SGD: every worker takes H steps alone, then everybody averages parameters."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedulers.entry import Entry, Parameter, always
from topo.schedule import Schedule
from topo.strategies.allreduce import AllReduce

if TYPE_CHECKING:
    from topo.cluster import Cluster


def make(cluster: Cluster, every: int) -> Schedule:
    """The same schedule as all-reduce every `every` steps, under the name that the literature uses."""
    return Schedule(ENTRY.label(every=every), cluster, AllReduce(pace=every))


ENTRY = Entry(
    name="local-sgd",
    summary="H steps alone, then one average over everybody: 1/H of the traffic, more disagreement.",
    source="Stich, Local SGD converges fast and communicates little, ICLR 2019",
    kind="allreduce",
    make=make,
    refuse=always,
    parameters=(Parameter(name="every", default=4, minimum=2, maximum=10**6, help="steps between two averages (H)"),),
    degree="n − 1",
    period="1",
    figures="contraction 0; disagreement (n−1)/n · (H−1)/2",
)
