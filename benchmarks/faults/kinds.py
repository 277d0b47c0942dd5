"""The kinds of strategy that the campaign runs, each with the results that every worker must hold.

Four workers. In each step worker w adds 1 to row w of its parameters and nothing to the last row, which starts with
ones. So a row shows how much of one worker is in an average, and the last row whether its weights sum to 1.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks import kit
from benchmarks.forgery.dense import averaging
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.strategies import load_strategy
from partreduce.topo.failure_plan import FailurePlan, SurvivorRule
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.base import Strategy

WORKERS, NODES = 4, 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kind:
    """A schedule, and what is known of its results, from a row of the table.

    `rounds` are the mixing matrices of one period, written independently of the schedule; None if groups are decided at
    run time. A round has `steps_a_round` steps, and gradients are `lag` steps late. With `keeps_gap` no worker takes
    more than a few steps without the others. With `takes_several` one step may apply several averages, and workers may
    be at different steps. Under `partreduce run` the others continue after `max_failures` failures; their `views` say
    which workers are in which round.
    """

    law: str
    rounds: tuple[npt.NDArray[np.float64], ...] | None
    cluster: Cluster
    strategy: Strategy
    steps_a_round: int
    late: bool
    gradients: bool
    lag: int
    keeps_gap: bool
    takes_several: bool
    kept: float
    max_failures: int

    @classmethod
    def of_row(cls, name: str, row: dict[str, Any]) -> Kind:
        document, law = row["strategy"], row["law"]
        sync, steps = document.get("sync", {}), document.get("steps_per_round", 1)
        num_nodes = NODES if document.get("transport", {}).get("algorithm") == "hierarchical" else 1
        cluster = Cluster.regular(num_nodes, WORKERS // num_nodes)
        strategy = load_strategy(document, cluster, name)
        late = "delay" in sync or sync.get("iteration_gap", {}).get("update_order") == "dpsgd"
        is_server = document["kind"] == "server" and document.get("synchronous", True)
        return cls(
            law=law,
            rounds=ROUNDS[row["rounds"]] if "rounds" in row else None,
            cluster=cluster,
            strategy=strategy,
            steps_a_round=steps,
            late=late,
            gradients=is_server or (document["kind"] == "allreduce" and steps == 1 and not late),
            lag=int("pipeline" in sync),
            keeps_gap="iteration_gap" in sync,
            takes_several="partial" in sync,
            kept=float(strategy.sync.kept) if "merge" in sync else 0.0,
            max_failures=2 if law == "views" else 0,
        )

    @property
    def is_free(self) -> bool:
        """Whether some workers may continue for long without noticing that another one failed or stopped."""
        return self.rounds is None and not self.keeps_gap and not self.takes_several

    @property
    def lasts_after(self) -> bool:
        return self.is_free or self.max_failures > 0

    @property
    def schedule(self) -> Schedule:
        rule = SurvivorRule.ALL_REDUCE if self.strategy.averages_everyone else SurvivorRule.KEEP_GROUPS
        is_planned = self.max_failures and not (self.kept or self.strategy.payload.outer.has_own_outer_params)
        plan = FailurePlan(rule, self.max_failures) if is_planned else None
        return Schedule("under-faults", self.cluster, self.strategy, failure_plan=plan)

    @property
    def fragments(self) -> int:
        return self.strategy.payload.num_fragments

    @property
    def ends(self) -> npt.NDArray[np.int64]:
        """The steps of a round after which each fragment has its turn, shape (fragments,)."""
        return np.arange(1, self.fragments + 1) * self.steps_a_round // self.fragments

    def is_due(self, step: int) -> npt.NDArray[np.bool_]:
        """Return which rows have their turn after a step, shape (rows,)."""
        return np.repeat(self.ends, rows_of(self.fragments))[:WORKERS] == step % self.steps_a_round + 1

    def turn_of(self, step: int) -> int:
        """Return the number of the next turn after a step."""
        round_, before = divmod(step, self.steps_a_round)
        return round_ * self.fragments + int((self.ends <= before).sum())


def rows_of(fragments: int) -> list[int]:
    """Return the number of rows in each fragment, of one row per worker and the row of ones."""
    return [len(part) for part in np.array_split(np.arange(WORKERS + 1), fragments)]


def means(groups: list[list[int]]) -> npt.NDArray[np.float64]:
    return averaging(WORKERS, [(group, 1) for group in groups])


def _shift(hop: int) -> npt.NDArray[np.float64]:
    return np.roll(np.eye(WORKERS), hop, axis=0)


ROUNDS = {
    "all": (means([[0, 1, 2, 3]]),),
    "pairs": (means([[0, 1], [2, 3]]), means([[0, 2], [1, 3]])),
    "ring": ((np.eye(WORKERS) + _shift(1) + _shift(-1)) / 3,),
    "peers": ((np.eye(WORKERS) + _shift(1)) / 2, (np.eye(WORKERS) + _shift(2)) / 2),
}


KINDS = {name: Kind.of_row(name, row) for name, row in kit.read_toml(Path(__file__).with_suffix(".toml")).items()}
