"""Small schedules of listed groups, rules and graphs, each made by one call."""

from dataclasses import replace

from partreduce.topo.phase import Phase
from partreduce.topo.round import Round
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import GroupPhases, NeighborAveraging, RulePhases, StaticGroups


def of_groups(name, cluster, *phases, **options):
    """Return a static schedule; each phase is a list of groups, or of their members."""
    listed = tuple(Phase.from_groups(cluster.num_workers, phase) for phase in phases)
    return Schedule(name, cluster, StaticGroups(phases=GroupPhases(listed), **options))


def of_phases(name, cluster, phases, **options):
    return Schedule(name, cluster, StaticGroups(phases=GroupPhases(tuple(phases)), **options))


def of_rule(name, cluster, radices, phases, **options):
    return Schedule(name, cluster, StaticGroups(phases=RulePhases(radices, phases), **options))


def of_edges(name, cluster, *rounds, **options):
    """Return a schedule over graphs; each round is a list of (source, target, weight)."""
    listed = tuple(Round.from_edges(cluster.num_workers, edges) for edges in rounds)
    return Schedule(name, cluster, NeighborAveraging(rounds=listed, **options))


def list_groups(schedule):
    phases = GroupPhases(tuple(map(schedule.phase, range(schedule.period))))
    return replace(schedule, strategy=replace(schedule.strategy, phases=phases))
