"""Iteration gaps: how far the workers of Hop can drift apart in steps, as published, exactly, and as explored.

Self-loops: a worker always has its own update, so whether N_in counts the worker itself (as Hop's paper does) changes
neither the backup needs (|N_in| − backup updates) nor any bound; graphs here are kept without self-loops.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from partreduce.schedulers.protocols.hop import check_setting
from partreduce.verify.gaps.event_graph import event_graph
from partreduce.verify.gaps.exact import exact_bounds, token_queue_capacity, update_queue_capacity
from partreduce.verify.gaps.liveness import dead_cycle
from partreduce.verify.gaps.one_worker import Capacities, capacities_of
from partreduce.verify.gaps.paper import paper_bounds

if TYPE_CHECKING:
    from partreduce.schedulers.protocols.digraph import Digraph
    from partreduce.topo.strategies.gap import Gap
    from partreduce.verify.explore import Exploration
    from partreduce.verify.gaps.paper import Matrix

__all__ = ["Capacities", "Gaps", "capacities_of", "gaps"]

MAX_HELD_BACK = 128
"""The largest graph for which one run per worker is made when its states are too many."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """The answer for one graph and setting; entry [i][j] of a matrix speaks of Step(i) − Step(j), None is unbounded.

    `attained` comes from visiting every state (`exhausted`), or, where there are too many, from one run per worker that
    is held back; it is None when it was not asked for. `live` says whether everybody can go on for ever; if not,
    `dead_cycle` names the events that wait for one another.
    """

    graph: Digraph
    setting: Gap
    paper_bound: Matrix
    exact_bound: Matrix
    attained: Matrix | None
    update_queue_capacity: Matrix
    token_queue_capacity: Matrix
    live: bool
    dead_cycle: tuple[str, ...] = ()
    exploration: Exploration | None = None
    exhausted: bool = False

    def to_json(self) -> dict[str, Any]:
        """The JSON object that `partreduce verify --gaps --json` prints."""

        def listed(matrix: Matrix | None) -> list[list[int | None]] | None:
            return None if matrix is None else [list(row) for row in matrix]

        return {
            "paper_bound": listed(self.paper_bound),
            "exact_bound": listed(self.exact_bound),
            "attained": listed(self.attained),
            "update_queue_capacity": listed(self.update_queue_capacity),
            "token_queue_capacity": listed(self.token_queue_capacity),
            "live": self.live,
        }


def gaps(graph: Digraph, setting: Gap, *, max_states: int = 30_000) -> Gaps:
    """Bounds, capacities and liveness of a setting on a graph, and what exploration attains within `max_states`.

    Args:
        graph: who sends to whom.
        setting: one row of Hop's Table 1 or a combination.
        max_states: size of the exploration; 0 explores nothing and leaves `attained` empty.

    Raises:
        ScheduleError: the setting does not fit the graph.
    """
    from partreduce.verify.gaps.attained import attained_gaps, gaps_by_holding_back  # loads the model checker

    check_setting(graph, setting)
    events = event_graph(graph, setting)
    cycle = dead_cycle(events)
    exact = exact_bounds(graph, setting)
    attained, exploration = attained_gaps(graph, setting, exact, max_states=max_states) if max_states else (None, None)
    exhausted = attained is not None
    if max_states and attained is None and cycle is None and graph.num_workers <= MAX_HELD_BACK:
        attained = gaps_by_holding_back(graph, setting, exact)
    return Gaps(
        graph,
        setting,
        paper_bounds(graph, setting),
        exact,
        attained,
        update_queue_capacity(graph, exact),
        token_queue_capacity(graph, exact, setting.max_ig),
        cycle is None,
        () if cycle is None else tuple(map(events.name, cycle)),
        exploration,
        exhausted,
    )
