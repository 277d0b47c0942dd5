"""U-EquiStatic graph: the undirected one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from schedulers.constructions.common import SEED, rounds
from schedulers.entry import Entry, Parameter
from schedulers.shifts import default_shifts, round_of, shifts

if TYPE_CHECKING:
    from topo.cluster import Cluster
    from topo.schedule import Schedule


def make(cluster: Cluster, num_shifts: int | None, seed: int) -> Schedule:
    """One fixed round of `num_shifts` random shifts."""
    count = cluster.num_workers
    drawn = shifts(count, default_shifts(count) if num_shifts is None else num_shifts, seed)
    return rounds(ENTRY.label(num_shifts=num_shifts, seed=seed), cluster, [round_of(count, drawn, undirected=True)])


def refuse(cluster: Cluster, num_shifts: int | None, seed: int) -> str | None:
    """More shifts than other workers are of no use."""
    del seed
    count = cluster.num_workers
    if num_shifts is not None and num_shifts > 8 * count:
        return f"{num_shifts} shifts of {count} workers; there are {count - 1} different ones, use at most {8 * count}"
    return None


ENTRY = Entry(
    name="u-equistatic",
    summary="A few random cyclic shifts at once (undirected): a gap that does not shrink with n.",
    source="Song et al., Communication-efficient topologies for decentralized learning, NeurIPS 2022",
    kind="graph",
    make=make,
    refuse=refuse,
    parameters=(Parameter(name="num_shifts", minimum=1, help="M, shifts drawn; auto: ⌈ln n⌉"), SEED),
    degree="2M",
    period="1",
    figures="‖W − J‖₂ < ε with probability 1 − p for M = 8 ln(2n/p)/(3ε²)",
)
