"""Runners of strategies, one file each; the table below names kinds (virtual time has its own, in `simulate.py`).

A new kind is one file with its runner and one line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from preduce.runtime.strategies.all_reduce import all_reduce
from preduce.runtime.strategies.generated import GeneratedMeans
from preduce.runtime.strategies.neighbor import neighbor_means
from preduce.runtime.strategies.pairwise import PairMeans
from preduce.runtime.strategies.server import parameter_server
from preduce.runtime.strategies.static import static
from preduce.topo.errors import MissingFeatureError
from preduce.topo.strategies.allreduce import AllReduce
from preduce.topo.strategies.generated import Generated
from preduce.topo.strategies.neighbor import Neighbor
from preduce.topo.strategies.pairwise import Pairwise
from preduce.topo.strategies.server import Server
from preduce.topo.strategies.static import Static

if TYPE_CHECKING:
    from collections.abc import Callable

    from preduce.runtime.strategies.base import Run, Runner

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
