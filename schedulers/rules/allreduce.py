"""All-reduce, in every step or every H steps: the baseline that everything is compared with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.entry import Entry, Parameter, always
from preduce.topo.schedule import Schedule
from preduce.topo.strategies.allreduce import AllReduce

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster


def every_h_steps(*, name: str, summary: str, source: str, default: int, minimum: int) -> Entry:
    """The entry that averages over everybody once in `every` steps, under one of the names that the literature uses."""

    def make(cluster: Cluster, every: int) -> Schedule:
        return Schedule(made.label(every=every), cluster, AllReduce(pace=every))

    made = Entry(
        name=name,
        summary=summary,
        source=source,
        kind="allreduce",
        make=make,
        refuse=always,
        parameters=(
            Parameter(
                name="every", default=default, minimum=minimum, maximum=10**6, help="steps between two averages (H)"
            ),
        ),
        degree="n − 1",
        period="1",
        figures="contraction 0; disagreement (n−1)/n · (H−1)/2",
    )
    return made


ENTRY = every_h_steps(
    name="allreduce",
    summary="Everybody averages with everybody, each step (as DDP does) or every H steps.",
    source="Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 2009",
    default=1,
    minimum=1,
)
