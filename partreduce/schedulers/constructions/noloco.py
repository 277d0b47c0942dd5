"""Build NoLoCo: outer steps of random pairs, with separate outer parameters on each worker.

Source: Kolehmainen et al., NoLoCo: no-all-reduce low communication training of large models, 2025 (arXiv 2506.10911).
Pairs are drawn here before the run, so that it can be proved; with the period they repeat.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from partreduce.schedulers.constructions.moshpit import random_partitions, random_partitions_unsupported_reason
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError, ScheduleError
from partreduce.topo.metrics.stability import check_unstable
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.payload import OuterParams, OuterStep, Payload
from partreduce.topo.strategies.static import StaticGroups


def noloco(cluster: Cluster, *, every: int, lr: float, momentum: float, phases: int, seed: int) -> StaticGroups:
    """Every `every` steps each worker makes an outer step with a partner; of an odd number one rests in each round."""
    outer = OuterStep(lr=Fraction(str(lr)), momentum=Fraction(str(momentum)), outer_params=OuterParams.PER_WORKER)
    return replace(random_partitions(cluster, 2, phases, seed), steps_per_round=every, payload=Payload(outer=outer))


def noloco_unsupported_reason(
    cluster: Cluster, *, every: int, lr: float, momentum: float, phases: int, seed: int
) -> str | None:
    """Pairs connect all, and with this rate and momentum differences die out."""
    if reason := random_partitions_unsupported_reason(cluster, 2, phases, seed):
        return reason
    drawn = noloco(cluster, every=every, lr=lr, momentum=momentum, phases=phases, seed=seed)
    try:
        check_unstable(Schedule("noloco", cluster, drawn))
    except (InputError, ScheduleError) as error:
        return str(error)
    return None
