"""Public functions that combine several packages: the catalogue and the planner."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, overload

from partreduce.schedulers import registry
from partreduce.topo.argument_types import check_type
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.cluster import load_cluster
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from partreduce.planner.job import PlanRequest
    from partreduce.planner.plan import Plan


def catalogue() -> list[str]:
    """List the entries of the schedule catalogue: the names that `design(..., build=NAME)` accepts.

    Returns:
        Names of entries, such as "allreduce" and "ring".
    """
    return registry.names()


@overload
def design(request: PlanRequest, *, progress: Callable[[str], None] | None = None) -> Plan: ...


@overload
def design(request: Cluster | str, *, build: str, **parameters: object) -> Schedule: ...


def design(
    request: PlanRequest | Cluster | str,
    *,
    build: str | None = None,
    progress: Any = None,
    **parameters: object,
) -> Plan | Schedule:
    """Find the best schedule for a request, or with `build` make a named schedule of the catalogue for a cluster.

    Args:
        request: a PlanRequest; with `build` a Cluster, a shorthand such as "4x4" or "3,3,2", or a cluster file's path.
        build: a name from `catalogue()`.
        progress: with a PlanRequest: called with a line for each stage of the search.
        **parameters: with `build`: the entry's own parameters, such as `every=4` for "allreduce".

    Returns:
        The Plan for a request; the Schedule of a catalogue entry.

    Raises:
        InputError: an unknown name or parameter (with the closest known one), a cluster that the entry does not
            support, a contradictory request, or arguments that cannot be combined.
        InfeasibleError: it is proved that no schedule of the class in the message is within the limits, and no other
            schedule was found.
        UndecidedError: no schedule within the limits was found within the time limit.
    """
    if build is not None:
        from partreduce.planner.job import PlanRequest

        if isinstance(request, PlanRequest) or progress is not None:
            given = "a PlanRequest" if isinstance(request, PlanRequest) else "progress"
            raise InputError(f"design: build: expected a cluster alone, got {given}, too; leave one of the two out")
        place = request if isinstance(request, Cluster) else load_cluster(request)
        return registry.build(build, place, **parameters)
    if isinstance(request, (Cluster, str)):
        rule = "give build=NAME, or a PlanRequest to search for a schedule"
        raise InputError(f"design: build: expected a catalogue entry for cluster {request}, got none; {rule}")
    if parameters:
        rule = "leave it out, or build a catalogue entry with build=NAME"
        raise InputError(f"design: {next(iter(parameters))}: expected no such argument of a PlanRequest; {rule}")
    from partreduce.planner.job import PlanRequest
    from partreduce.planner.plan import plan
    from partreduce.report.reasons import add_reasons

    check_type("design: request", request, PlanRequest)
    return add_reasons(plan(request, progress=progress), request)
