"""Runners of strategies, one file each; the table below names kinds (virtual time has its own, in `simulate.py`).

A new kind is one file with its runner and one line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from partreduce.runtime.strategies.all_reduce import all_reduce
from partreduce.runtime.strategies.generated import GeneratedMeans
from partreduce.runtime.strategies.neighbor import neighbor_means
from partreduce.runtime.strategies.pairwise import PairMeans
from partreduce.runtime.strategies.server import parameter_server
from partreduce.runtime.strategies.static import static
from partreduce.topo.errors import MissingFeatureError
from partreduce.topo.strategies.allreduce import AllReduce
from partreduce.topo.strategies.generated import Generated
from partreduce.topo.strategies.neighbor import Neighbor
from partreduce.topo.strategies.pairwise import Pairwise
from partreduce.topo.strategies.server import Server
from partreduce.topo.strategies.static import Static

if TYPE_CHECKING:
    from collections.abc import Callable

    from partreduce.runtime.strategies.base import Run, Runner

Kind = TypeVar("Kind")


@dataclass(frozen=True, slots=True)
class _Entry(Generic[Kind]):
    """A kind of strategy and what makes its runner, typed so that the two fit."""

    kind: type[Kind]
    build: Callable[[Kind, Run], Runner]


_RUNNERS: tuple[_Entry[Any], ...] = (
    _Entry(AllReduce, all_reduce),
    _Entry(Static, static),
    _Entry(Neighbor, neighbor_means),
    _Entry(Server, parameter_server),
    _Entry(Generated, GeneratedMeans),
    _Entry(Pairwise, PairMeans),
)


def runnable_kinds() -> set[str]:
    """The names of the kinds that have a runner here."""
    return {entry.kind.kind for entry in _RUNNERS}


def build(run: Run) -> Runner:
    """The runner of a schedule's strategy.

    Raises:
        MissingFeatureError: no strategy here runs schedules of this kind.
    """
    strategy = run.schedule.strategy
    for entry in _RUNNERS:
        if entry.kind is type(strategy):
            return entry.build(strategy, run)
    raise MissingFeatureError(
        f"schedule {run.schedule.name!r}: strategy {strategy.kind!r} cannot be executed by this version"
    )
