"""Two of the four axes of a strategy, as values that answer for themselves: *when* it waits, *how* payload travels.

The other two, *with whom* and *what*, are what the strategy kinds themselves say (docs/architecture.md).
"""

from __future__ import annotations

from dataclasses import dataclass

from preduce.topo.fields import Choice, Closed


@dataclass(frozen=True, slots=True)
class Lockstep:
    """A round waits for its averaging: x_{k+1} = W_k (x_k + u_k)."""

    @property
    def lag(self) -> int:
        """Rounds by which an averaging is late."""
        return 0


@dataclass(frozen=True, slots=True)
class Late:
    """The averaging of a round's first parameters runs while the round computes: x_{k+1} = W_k x_k + u_k(x_k)."""

    rounds: int = 1

    @property
    def lag(self) -> int:
        """Rounds by which an averaging is late."""
        return self.rounds


LOCKSTEP = Lockstep()
When = Lockstep | Late
"""How long a round waits, and how old what it gets may be."""


class Form(Choice):
    """How a group carries out its all-reduce (costs: `topo.timing.cost`)."""

    RING = "ring"
    TREE = "tree"
    HIERARCHICAL = "hierarchical"

    @property
    def is_executable(self) -> bool:
        """Whether the run-time carries it out; a tree is a cost to compare with."""
        return self is not Form.TREE


@dataclass(frozen=True, slots=True, kw_only=True)
class How(Closed):
    """How the payload of a sum travels."""

    form: Form = Form.RING


RING = How()
