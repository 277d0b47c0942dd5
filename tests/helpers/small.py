"""Small schedules of listed groups, of rules and of graphs, in one call each."""

from dataclasses import replace

from partreduce.topo.phase import Phase
from partreduce.topo.round import Round
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import GroupPhases, NeighborAveraging, RulePhases, StaticGroups


def of_groups(name, cluster, *phases, **options):
    """Each phase is a list of groups, or of their members."""
    listed = tuple(Phase.from_groups(cluster.num_workers, phase) for phase in phases)
    return Schedule(name, cluster, StaticGroups(phases=GroupPhases(listed), **options))


def of_phases(name, cluster, phases, **options):
    return Schedule(name, cluster, StaticGroups(phases=GroupPhases(tuple(phases)), **options))


def of_rule(name, cluster, radices, phases, **options):
    return Schedule(name, cluster, StaticGroups(phases=RulePhases(radices, phases), **options))


def of_edges(name, cluster, *rounds, **options):
    """Each round is a list of (source, target, weight)."""
    listed = tuple(Round.from_edges(cluster.num_workers, edges) for edges in rounds)
    return Schedule(name, cluster, NeighborAveraging(rounds=listed, **options))


def list_groups(schedule):
    """The same phases with their groups written out."""
    phases = GroupPhases(tuple(map(schedule.phase, range(schedule.period))))
    return replace(schedule, strategy=replace(schedule.strategy, phases=phases))
