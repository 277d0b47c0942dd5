"""How the prover looks at a schedule: explicit phases, or a rule with its digits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from preduce.topo.rule import Block, RulePhase
from preduce.topo.strategies import AllReduce, Static

if TYPE_CHECKING:
    from fractions import Fraction

    from preduce.topo.phase import Phase
    from preduce.topo.schedule import Schedule


@dataclass(frozen=True, slots=True)
class RuleView:
    """A rule: `size` local ranks on every node, nodes numbered by mixed-radix digits, blocks per phase."""

    size: int
    radices: tuple[int, ...]
    phases: tuple[RulePhase, ...]

    @property
    def num_digits(self) -> int:
        """The number of digits of a node's index."""
        return len(self.radices)


def rule_view(schedule: Schedule) -> RuleView | None:
    """The rule behind a schedule, None for explicit ones.

    `allreduce` is a rule too: one worker a node, one digit, one block across it, whatever the cluster looks like.
    """
    strategy = schedule.strategy
    if isinstance(strategy, AllReduce):
        return RuleView(1, (schedule.num_workers,), ((Block((0,), (0,)),),))
    if isinstance(strategy, Static) and strategy.node_radices is not None:
        size = schedule.cluster.workers_per_node
        assert size is not None
        return RuleView(size, strategy.node_radices, tuple(map(_ascending, strategy.rule_phases())))
    return None


def _ascending(phase: RulePhase) -> RulePhase:
    """The canonical order of a file's blocks, so that a certificate holds for every file of the same hash."""
    blocks = (Block(tuple(sorted(b.local)), tuple(sorted(b.across)), b.relax) for b in phase)
    return tuple(sorted(blocks, key=lambda b: (b.local, b.across, str(b.relax))))


def explicit_view(schedule: Schedule) -> tuple[Phase, ...] | None:
    """The explicit phases, None for rules and graphs."""
    strategy = schedule.strategy
    if isinstance(strategy, Static) and strategy.node_radices is None:
        return strategy.explicit_phases()
    return None


def makes_groups(block: Block) -> bool:
    """Whether a block forms groups of two or more workers: one local rank inside each node averages with nobody."""
    return len(block.local) > 1 or bool(block.across)


def contracts(relax: Fraction) -> bool:
    """Whether a group of this factor draws its members together."""
    return 0 < relax < 2


def is_tame(relax: Fraction) -> bool:
    """Whether a group of this factor lengthens nothing and keeps a vector's length only by leaving it alone."""
    return 0 <= relax < 2


def every_relax_tame(schedule: Schedule) -> bool:
    """Whether 0 ≤ relax < 2 in every group."""
    rule = rule_view(schedule)
    if rule is not None:
        return all(is_tame(block.relax) for phase in rule.phases for block in phase if makes_groups(block))
    return all(is_tame(relax) for phase in explicit_view(schedule) or () for relax in set(phase.relax or ()))
