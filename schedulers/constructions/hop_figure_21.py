"""The graphs of Hop's Figure 21."""

from __future__ import annotations

from typing import TYPE_CHECKING

from preduce.schedulers.constructions.common import WEIGHTS, fixed
from preduce.schedulers.entry import Entry, Parameter
from preduce.topo.graphs.hop_figure_21 import hop_figure_21

if TYPE_CHECKING:
    from preduce.topo.cluster import Cluster
    from preduce.topo.schedule import Schedule


def make(cluster: Cluster, setting: str, weights: str) -> Schedule:
    """One of the three settings over 8 workers."""
    return fixed(ENTRY.label(setting=setting, weights=weights), cluster, hop_figure_21(setting), weights)


def refuse(cluster: Cluster, setting: str, weights: str) -> str | None:
    """The figure shows 8 workers."""
    del setting, weights
    if cluster.num_workers == 8:
        return None
    return f"the figure shows 8 workers, not {cluster.num_workers}; use ring-based for other sizes"


ENTRY = Entry(
    name="hop-figure-21",
    summary="Three graphs over 8 workers on machines of 4, 2 and 2, with gaps that the paper prints.",
    source="Luo et al., Hop: heterogeneity-aware decentralized training, ASPLOS 2019, Figure 21",
    kind="graph",
    make=make,
    refuse=refuse,
    parameters=(
        Parameter(
            name="setting",
            kind="text",
            default="a",
            choices=("a", "b", "c"),
            help="a: ring-based; b: one gateway worker a machine; c: links at different workers",
        ),
        WEIGHTS,
    ),
    condition="n = 8",
    degree="3 (a), up to 5 (b), up to 4 (c)",
    period="1",
    figures="hop gaps 2/3, 0.268192, 0.268848",
)
