"""NoLoCo: outer steps of random pairs, from anchors of each worker's own.

Source: Kolehmainen et al., NoLoCo: no-all-reduce low communication training of large models, 2025 (arXiv 2506.10911).
Pairs are drawn here before the run, so that it can be proved; with the period they repeat.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from partreduce.schedulers.constructions.moshpit import random_partitions, random_partitions_refusal
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError, ScheduleError
from partreduce.topo.figures.outer_steps import refuse_unstable
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.outer import Anchor, Outer
from partreduce.topo.strategies.routes import Routes
from partreduce.topo.strategies.static import Static


def noloco(cluster: Cluster, *, every: int, lr: float, momentum: float, phases: int, seed: int) -> Static:
    """Every `every` steps each worker makes an outer step with a partner; of an odd number one rests in each round."""
    outer = Outer(lr=Fraction(str(lr)), momentum=Fraction(str(momentum)), anchor=Anchor.OWN)
    return replace(random_partitions(cluster, 2, phases, seed), pace=every, what=Routes(outer=outer))


def noloco_refusal(cluster: Cluster, *, every: int, lr: float, momentum: float, phases: int, seed: int) -> str | None:
    """Pairs connect all, and with this rate and momentum differences die out."""
    if reason := random_partitions_refusal(cluster, 2, phases, seed):
        return reason
    drawn = noloco(cluster, every=every, lr=lr, momentum=momentum, phases=phases, seed=seed)
    try:
        refuse_unstable(Schedule("noloco", cluster, drawn))
    except (InputError, ScheduleError) as error:
        return str(error)
    return None
