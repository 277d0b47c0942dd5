"""A second implementation of Hop, from the paper, with sets of step numbers; protocol and simulator must match it."""

from dataclasses import dataclass, field

from partreduce.schedulers.protocols.base import Note, Received, Send
from partreduce.schedulers.protocols.hop import Ack, Advance, Reduce, SendUpdate, Token, Update


@dataclass
class Worker:
    """One worker: all updates that ever arrived, and the least step that each out-neighbor is known to have reached."""

    step: int = 0
    stage: str = "send"
    come: dict[int, set[int]] = field(default_factory=dict)
    since: set[tuple[int, int]] = field(default_factory=set)
    known: dict[int, int] = field(default_factory=dict)
    unacked: set[int] = field(default_factory=set)


class SecondHop:
    """All workers; `events` and `do` use the machine's events and messages.

    It forgets nothing and counts no tokens: a token is the news that an out-neighbor advanced by a step.
    """

    def __init__(self, graph, setting, fine):
        n = graph.num_workers
        self.setting, self.split = setting, fine or setting.notify_ack
        self.into = {v: [a for a, b in graph.edges if b == v] for v in range(n)}
        self.out = {v: [b for a, b in graph.edges if a == v] for v in range(n)}
        backup = setting.backup if isinstance(setting.backup, tuple) else (setting.backup,) * n
        self.num_needed = {v: len(self.into[v]) - backup[v] for v in range(n)}
        self.workers = [
            Worker(come={u: set() for u in self.into[v]}, known={w: 0 for w in self.out[v]}) for v in range(n)
        ]
        if not self.split:
            for worker in self.workers:
                worker.stage = "reduce"

    def fitting(self, v, step):
        """Return {in-neighbor: the update of it that this step could reduce}."""
        late, come = self.setting.staleness, self.workers[v].come
        newest = {u: max((k for k in come[u] if k >= step - late), default=None) for u in self.into[v]}
        return {
            u: newest[u] if late else step for u in self.into[v] if (newest[u] is not None if late else step in come[u])
        }

    def serves(self, v, step):
        return len(self.fitting(v, step)) >= self.num_needed[v]

    def taken(self, v, step):
        """Return the (in-neighbor, update) that a step averages; under staleness only those since the last reduce."""
        chosen = self.fitting(v, step)
        if self.setting.staleness:
            chosen = {u: k for u, k in chosen.items() if (u, k) in self.workers[v].since}
        return tuple(sorted(chosen.items()))

    def events(self, v):
        worker, skip, max_ig = self.workers[v], self.setting.skip, self.setting.max_ig
        if worker.stage == "send":
            return [] if worker.unacked else [SendUpdate()]
        if self.split and worker.stage == "reduce":
            return [Reduce()] if self.serves(v, worker.step) else []
        if not self.split and not self.serves(v, worker.step):
            return []
        slowest = min(worker.known.values(), default=worker.step)
        jumps = [] if skip is None else range(skip.trigger, skip.limit + 1)
        jumps = [
            by for by in jumps if slowest >= worker.step + max(by, skip.behind) and self.serves(v, worker.step + by - 1)
        ]
        if jumps:
            return [Advance(max(jumps))]
        return [Advance()] if max_ig is None or not worker.known or slowest + max_ig > worker.step else []

    def updates(self, v):
        return [Send(w, Update(self.workers[v].step)) for w in self.out[v]]

    def do(self, v, event):
        worker = self.workers[v]
        match event:
            case Received(u, Update(step)):
                worker.come[u].add(step)
                worker.since.add((u, step))
                return []
            case Received(w, Token(count)):
                worker.known[w] += count
                return []
            case Received(w, Ack()):
                worker.unacked.discard(w)
                return []
            case SendUpdate():
                worker.stage = "reduce"
                worker.unacked = set(self.out[v]) if self.setting.notify_ack else set()
                return self.updates(v)
            case Reduce():
                worker.stage = "enter"
                acks = [Send(u, Ack()) for u in self.into[v]] if self.setting.notify_ack else []
                used = self.taken(v, worker.step)
                worker.since = set()
                return [*acks, Note(("reduced", worker.step, used))]
            case Advance(by):
                renewed = []
                if by > 1 and self.split:
                    renewed = [Note(("renewed", worker.step + by - 1, self.taken(v, worker.step + by - 1)))]
                    worker.since = set()
                worker.step += by
                worker.stage = "send" if self.split else "reduce"
                has_tokens = self.setting.max_ig is not None
                tokens = [Send(u, Token(by)) for u in self.into[v]] if has_tokens else []
                return [*([] if self.split else self.updates(v)), *tokens, *renewed, Note(("entered", worker.step))]
        raise AssertionError(event)
