"""Define the machine: workers and the authority as processes that may crash, pause and restart."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from partreduce.schedulers.protocols.base import Outcome
from partreduce.schedulers.protocols.membership.authority import Authority, Decisions
from partreduce.schedulers.protocols.membership.member import OVER, Member, Workers
from partreduce.schedulers.protocols.membership.messages import Phase, View


@dataclass(frozen=True)
class Membership(Workers, Decisions):
    """Workers 0..n−1 and the authority as process n; a `Machine`.

    Its notes say what a driver has to carry out. Of a worker: `("unblock",)` destroys its groups; `("forward",)`
    commits what is prepared, `("dropped",)` gives it up; `("rebuild", view)` connects. Of the authority:
    `("write", view)` comes before it is sent; `("fenced", worker)` ends one that is excluded and may live.
    """

    @property
    def num_processes(self) -> int:
        return self.num_workers + 1

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        everybody = range(self.num_processes)
        return [(u, v) for u in everybody for v in everybody if u != v]

    @property
    def suspects(self) -> Sequence[tuple[int, int]]:
        """Any worker may be taken for dead by any other process."""
        return [(u, v) for u, v in self.channels if u != self.authority]

    def start(self, process: int) -> Outcome[Member | Authority]:
        first = View(0, tuple(range(self.num_workers - self.outside)))
        if process == self.authority:
            votes = (None,) * self.num_workers
            return Authority((first,), votes=votes, leases=self.leases, restarts=self.restarts), ()
        if process not in first.members:
            return self.joiner(), ()
        return Member(first), ()

    def ready(self, process: int, state: Member | Authority) -> Sequence[Hashable]:
        """What a process may do by itself."""
        if isinstance(state, Authority):
            return self._ready_authority(state)
        return self._ready_member(process, state)

    def step(self, process: int, state: Member | Authority, event: object) -> Outcome[Member | Authority]:
        if isinstance(state, Authority):
            return self._step_authority(state, event)
        return self._step_member(process, state, event)

    def finished(self, process: int, state: Member | Authority) -> bool:  # noqa: ARG002 - as in Finishing
        """Also outside: no worker waits for who is there."""
        return isinstance(state, Authority) or state.phase in (*OVER, Phase.OUTSIDE)
