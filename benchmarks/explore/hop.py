"""The properties of Hop's worker: gaps, queues, tokens and acknowledgements, each stated for the explorer."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from benchmarks.explore.covering import Factors, Level
from benchmarks.explore.explorer import (
    AT_ONCE,
    REORDERED,
    USUAL,
    Configuration,
    Exploration,
    Explored,
    Network,
    fail_stop,
)
from benchmarks.explore.reductions import Hop
from benchmarks.explore.search import NoDeadlock, Pair, PerPair, PerProcess, Property, through
from partreduce.schedulers.protocols.base import Note, Outcome, Received, Send
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.schedulers.protocols.hop import (
    ENTERING,
    REDUCING,
    SENDING,
    Ack,
    Advance,
    HopState,
    Reduce,
    SendUpdate,
    Token,
    Update,
    check_setting,
)
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import NeighborAveraging, Round
from partreduce.topo.strategies.iteration_gap import IterationGap, SkipPolicy
from partreduce.verify.facts import ScheduleFacts
from partreduce.verify.gap_bounds import Matrix, exact_bounds


def hop_properties(machine: Hop, *, reordered: bool = False) -> tuple[Property, ...]:
    """All properties that apply to the machine's setting; `reordered` says that updates may overtake one another."""
    setting, graph = machine.setting, machine.graph
    bounds = exact_bounds(graph, setting)
    listed: list[Property] = [
        NoDeadlock(),
        _gap_bound(machine, bounds),
        _permission(machine),
        _queue_truth(machine),
        _sends(machine),
        _update_capacity(machine, bounds),
    ]
    if not reordered:
        listed.append(_updates_in_order(machine))
    if setting.max_ig is not None:
        listed += [_token_balance(machine, setting.max_ig), _token_capacity(machine, bounds, setting.max_ig)]
    if setting.skip is not None:
        listed += [_no_passing(machine), _skip_bound(machine)]
    if setting.notify_ack:
        listed.append(_ack_balance(machine))
    return tuple(listed)


def _gap_bound(machine: Hop, bounds: Matrix) -> PerPair:
    n = machine.num_processes

    def check(pair: Pair) -> str | None:
        i, a, j, b, _, _ = pair
        bound = bounds[i][j]
        gap = a.step - b.step
        if bound is None or gap <= bound:
            return None
        return f"worker {i} is {gap} steps ahead of worker {j}; the bound is {bound}"

    pairs = tuple((i, j) for i in range(n) for j in range(n) if i != j)
    return PerPair("gap within bound", pairs, check, messages=False)


def _permission(machine: Hop) -> PerProcess:
    """A worker may do exactly what its queues allow: nothing more (safety), nothing less (no needless waiting)."""
    setting = machine.setting
    spare = setting.backups(machine.num_processes)

    def check(v: int, state: HopState) -> str | None:
        offered = set(machine.ready(v, state))
        allowed = _allowed(machine, state, len(machine.graph.sources[v]) - spare[v])
        if offered == allowed:
            return None
        too_much, missing = offered - allowed, allowed - offered
        return f"worker {v} in {state}: offers {sorted(map(str, too_much))} too much, lacks {sorted(map(str, missing))}"

    return PerProcess("enters only what it may", check)


def _allowed(machine: Hop, state: HopState, needed: int) -> set[object]:
    """The events that the paper's text allows, from the queues' contents as sets of steps."""
    setting = machine.setting
    split = machine.fine or setting.notify_ack
    oldest = state.step - setting.staleness
    held = [{oldest + b for b in range(queue.bit_length()) if queue >> b & 1} for queue in state.updates]

    def reducible(step: int) -> bool:
        if setting.staleness:
            return sum(any(k >= step - setting.staleness for k in queue) for queue in held) >= needed
        return sum(step in queue for queue in held) >= needed

    if split and state.stage == SENDING:
        return {SendUpdate()} if not setting.notify_ack or all(state.acked) else set()
    if split and state.stage == REDUCING:
        return {Reduce()} if reducible(state.step) else set()
    if not split and not reducible(state.step):
        return set()
    if setting.skip is not None and setting.max_ig is not None:
        behind = [count - setting.max_ig for count in state.tokens]  # no out-neighbor is nearer than this
        jumps = [
            by
            for by in range(setting.skip.trigger, setting.skip.limit + 1)
            if behind
            and all(max(by, setting.skip.behind) <= ahead for ahead in behind)
            and reducible(state.step + by - 1)
        ]
        if jumps:
            return {Advance(max(jumps))}
    return {Advance()} if all(count >= 1 for count in state.tokens) else set()


def _sends(machine: Hop) -> PerProcess:
    """An update goes to all out-neighbors."""
    split = machine.fine or machine.setting.notify_ack

    def check(v: int, state: HopState) -> str | None:
        for event in machine.ready(v, state):
            after, actions = machine.step(v, state, event)
            sent = [(a.to, a.message.step) for a in actions if isinstance(a, Send) and isinstance(a.message, Update)]
            sends = isinstance(event, SendUpdate) or (isinstance(event, Advance) and not split)
            due = [(w, after.step) for w in machine.graph.targets[v]] if sends else []
            if sent != due:
                return f"worker {v} in {state} sends updates {sent}; due are {due}"
        return None

    return PerProcess("sends to all out-neighbors", check)


def _no_passing(machine: Hop) -> PerPair:
    """A skip never passes an out-neighbor, wherever its tokens are."""

    def check(pair: Pair) -> str | None:
        u, a, v, b, _, _ = pair
        for event in machine.ready(u, a):
            if isinstance(event, Advance) and event.by > 1 and a.step + event.by > b.step:
                return f"worker {u} may skip to step {a.step + event.by}; worker {v} is in step {b.step}"
        return None

    return PerPair("skips pass nobody", machine.graph.edges, check, messages=False)


def longest_skips(machine: Hop) -> list[int]:
    """For every worker the most steps that it can ever skip at once, as the checker states it."""
    n = machine.graph.num_workers
    rounds = Round.from_edges(n, [(u, v, Fraction(1, n)) for u, v in machine.graph.edges])
    kept = Schedule("skips", Cluster.regular(n, 1), NeighborAveraging(rounds=(rounds,), sync=machine.setting))
    return list(ScheduleFacts(kept).numbers("skip")["longest"])


def _skip_bound(machine: Hop) -> PerProcess:
    longest = longest_skips(machine)

    def check(v: int, state: HopState) -> str | None:
        for event in machine.ready(v, state):
            if isinstance(event, Advance) and event.by > max(1, longest[v]):
                return f"worker {v} may skip {event.by} steps; the bound is {longest[v]}"
        return None

    return PerProcess("skip within bound", check)


def _last_sent(machine: Hop, state: HopState) -> int:
    split = machine.fine or machine.setting.notify_ack
    return state.step - 1 if split and state.stage == SENDING else state.step


def _queue_truth(machine: Hop) -> PerPair:
    """A queue holds exactly the updates that were sent, have arrived and can still serve.

    Updates that were skipped were never sent. Whoever skipped them knew that the receiver was past their step: so of
    the steps from the receiver's on, which are all that serve without staleness, none is missing.
    Under staleness the newest stands for all, and who has sent in its step has sent something at least as new.
    """
    staleness = machine.setting.staleness

    def check(pair: Pair) -> str | None:
        u, a, v, b, there, _ = pair
        queue = b.updates[machine.graph.sources[v].index(u)]
        waiting = {m.step for m in there if isinstance(m, Update)}
        oldest = b.step - staleness
        sent = [k for k in range(oldest, _last_sent(machine, a) + 1) if k not in waiting]
        held = [oldest + bit for bit in range(queue.bit_length()) if queue >> bit & 1]
        expected = sent[-1:] if staleness else sent
        is_sure = machine.setting.skip is None or not staleness or expected == [a.step]
        if not is_sure and len(held) <= 1 and set(held) <= set(sent):
            return None
        if held == expected or (not held and expected and expected[-1] < 0):
            return None  # steps below 0 may lie before the start of the run, where nothing was sent
        return f"queue {u} → {v} holds updates of steps {held}; it should hold {expected}"

    return PerPair("queue holds what arrived", machine.graph.edges, check)


def _updates_in_order(machine: Hop) -> PerPair:
    def check(pair: Pair) -> str | None:
        u, a, v, _, there, _ = pair
        steps = [m.step for m in there if isinstance(m, Update)]
        if steps == sorted(set(steps)) and (not steps or steps[-1] <= _last_sent(machine, a)):
            return None
        return f"updates of steps {steps} are on their way {u} → {v}, the sender is in step {a.step}"

    return PerPair("each update sent once, in order", machine.graph.edges, check)


def _update_capacity(machine: Hop, bounds: Matrix) -> PerPair:
    """Updates of the receiver's step or later, in the queue or on their way, fit the proved capacity."""

    def check(pair: Pair) -> str | None:
        u, _, v, b, there, _ = pair
        limit = _plus(bounds[u][v], 1)
        queue = b.updates[machine.graph.sources[v].index(u)] >> machine.setting.staleness
        count = queue.bit_count() + sum(1 for m in there if isinstance(m, Update) and m.step >= b.step)
        if limit is None or count <= limit:
            return None
        return f"{count} updates wait for worker {v} from worker {u}; the capacity is {limit}"

    return PerPair("update queue within capacity", machine.graph.edges, check)


def _plus(bound: int | None, amount: int) -> int | None:
    return None if bound is None else bound + amount


def _token_balance(machine: Hop, max_ig: int) -> PerPair:
    """Tokens in hand and on their way are max_ig + Step(giver) − Step(taker): none lost, none made."""

    def check(pair: Pair) -> str | None:
        u, a, v, b, _, back = pair
        held = a.tokens[machine.graph.targets[u].index(v)]
        moving = sum(m.count for m in back if isinstance(m, Token))
        right = max_ig + b.step - a.step
        if held + moving == right:
            return None
        return f"worker {u} has {held} tokens of worker {v} and {moving} on their way; there should be {right} in all"

    return PerPair("tokens conserved", machine.graph.edges, check)


def _token_capacity(machine: Hop, bounds: Matrix, max_ig: int) -> PerPair:
    def check(pair: Pair) -> str | None:
        u, a, v, _, _, back = pair
        limit = _plus(bounds[v][u], max_ig)
        held = a.tokens[machine.graph.targets[u].index(v)]
        count = held + sum(m.count for m in back if isinstance(m, Token))
        if held >= 0 and (limit is None or count <= limit):
            return None
        return f"{count} tokens of worker {v} wait for worker {u} ({held} in hand); the capacity is {limit}"

    return PerPair("token queue within capacity", machine.graph.edges, check)


def _ack_balance(machine: Hop) -> PerPair:
    """Every update is acknowledged once, after it is reduced."""

    def check(pair: Pair) -> str | None:
        u, a, v, b, _, back = pair
        acked = a.acked[machine.graph.targets[u].index(v)]
        reduced = b.step if b.stage == ENTERING else b.step - 1
        open_ = _last_sent(machine, a) - reduced + sum(1 for m in back if isinstance(m, Ack))
        if open_ == (0 if acked else 1):
            return None
        word = "has" if acked else "has not"
        return f"worker {u} {word} its acknowledgement from worker {v}, with {open_} updates sent, not yet settled"

    return PerPair("acknowledged once reduced", machine.graph.edges, check)


NOTHING = -(2**60)
"""No update that could still serve has come."""


@dataclass(frozen=True, slots=True)
class Recorded:
    """A worker, and of every in-neighbor the newest update that has come since the last reduce (or `NOTHING`)."""

    worker: HopState
    came: tuple[int, ...]


@dataclass(frozen=True)
class Recording:
    """A machine of Hop's workers, each with its record."""

    machine: Hop

    @property
    def num_processes(self) -> int:
        return self.machine.num_processes

    @property
    def channels(self) -> Sequence[tuple[int, int]]:
        return self.machine.channels

    def start(self, process: int) -> Outcome[Recorded]:
        state, actions = self.machine.start(process)
        return Recorded(state, (NOTHING,) * len(self.machine.graph.sources[process])), actions

    def ready(self, process: int, state: Recorded) -> Sequence[Hashable]:
        return tuple(self.machine.ready(process, state.worker))

    def step(self, process: int, state: Recorded, event: object) -> Outcome[Recorded]:
        """As the machine; a reduce, also one before a skip, empties the record."""
        after, actions = self.machine.step(process, state.worker, event)
        came = state.came
        if not self.machine.setting.staleness:  # a reduce takes the updates of its step, whenever they came
            return Recorded(after, came), actions
        if isinstance(event, Received) and isinstance(event.message, Update):
            place = self.machine.graph.sources[process].index(event.source)
            held = state.worker.step - self.machine.setting.staleness + state.worker.updates[place].bit_length() - 1
            if event.message.step >= held or not state.worker.updates[place]:  # else a newer one has overtaken it
                came = (*came[:place], max(came[place], event.message.step), *came[place + 1 :])
        elif isinstance(event, Reduce) or (isinstance(event, Advance) and event.by > 1):
            came = (NOTHING,) * len(came)
        oldest = after.step - self.machine.setting.staleness
        return Recorded(after, tuple(k if k >= oldest else NOTHING for k in came)), actions

    # The machine's reductions.

    def clock(self, process: int, state: Recorded) -> int:
        return self.machine.clock(process, state.worker)

    def shifted(self, process: int, state: Recorded, by: int) -> Recorded:
        came = tuple(k - by if k > NOTHING else k for k in state.came)
        return Recorded(self.machine.shifted(process, state.worker, by), came)

    def shifted_message(self, message: Any, by: int) -> Any:  # noqa: ANN401 - as in Shiftable
        return self.machine.shifted_message(message, by)

    def symmetries(self) -> Sequence[tuple[int, ...]]:
        return self.machine.symmetries()

    def renamed(self, process: int, state: Recorded, permutation: tuple[int, ...]) -> Recorded:
        """The record is put in the order of the new names."""
        places = {permutation[u]: place for place, u in enumerate(self.machine.graph.sources[process])}
        came = tuple(state.came[places[u]] for u in self.machine.graph.sources[permutation[process]])
        return Recorded(self.machine.renamed(process, state.worker, permutation), came)

    def renamed_message(self, message: Any, permutation: tuple[int, ...]) -> Any:  # noqa: ANN401 - as in Symmetric
        return self.machine.renamed_message(message, permutation)


def of_the_worker(prop: Property) -> Property:
    """A property of Hop's workers, asked of recorded ones."""
    return through(prop, lambda state: state.worker)


def takes_what_came(machine: Hop) -> PerProcess:
    """A reduce averages the newest update that has come since the last one, of everybody of whom one has that serves.

    Without staleness, it averages the updates of its step.
    """
    setting = machine.setting

    def check(v: int, state: Recorded) -> str | None:
        worker = state.worker
        for event in machine.ready(v, worker):
            by = event.by if isinstance(event, Advance) else 1
            if isinstance(event, SendUpdate) or (isinstance(event, Advance) and by == 1):
                continue
            notes: list[Any] = [a.what for a in machine.step(v, worker, event)[1] if isinstance(a, Note)]
            step = worker.step + by - 1
            word = "reduced" if isinstance(event, Reduce) else "renewed"
            told = [what for what in notes if what[0] != "entered"]
            right = (word, step, expected(v, state, step))
            if told != [right]:
                return f"worker {v} tells {told}; it should tell {right}"
        return None

    def expected(v: int, state: Recorded, step: int) -> tuple[tuple[int, int], ...]:
        fitting, first = [], state.worker.step - setting.staleness
        for u, queue, came in zip(machine.graph.sources[v], state.worker.updates, state.came, strict=True):
            held = {first + bit for bit in range(queue.bit_length()) if queue >> bit & 1}
            served = came
            if not setting.staleness:
                served = step if step in held else NOTHING
            if served >= step - setting.staleness:
                fitting.append((u, served))
        return tuple(fitting)

    return PerProcess("averages what came", check)


def explored(machine: Hop, network: Network) -> Explored:
    properties = hop_properties(machine, reordered=network.reorder)
    found = Explored(machine, properties)
    if machine.fine or machine.setting.notify_ack:
        found = Explored(Recording(machine), (*map(of_the_worker, properties), takes_what_came(machine)))
    return fail_stop(found) if network.suspicions else found


def hop(
    name: str,
    graph: Digraph,
    setting: IterationGap,
    network: Network = USUAL,
    *,
    fine: bool = False,
    symmetry: bool = False,
) -> Configuration:
    """Of a graph and a setting; in `fine` steps the events of a step are kept apart."""
    return Configuration(name, Hop(graph, setting, fine=fine), explored, network, symmetry)


def is_tight(configuration: Configuration, found: Exploration) -> bool:
    """Whether the exploration attains the exact bound of every pair."""
    return found.gaps == exact_bounds(configuration.machine.graph, configuration.machine.setting)


def ring(n: int) -> Digraph:
    """The directed ring."""
    return Digraph.of(n, [(i, (i + 1) % n) for i in range(n)])


def both_ways(n: int) -> Digraph:
    """The undirected ring."""
    return Digraph.undirected(n, [(i, (i + 1) % n) for i in range(n)])


def diamond() -> Digraph:
    """0 sends to 1 and 2, both to 3, and 3 to 0: the smallest graph on which Hop's Theorem 2 is not tight."""
    return Digraph.of(4, [(0, 1), (0, 2), (1, 3), (2, 3), (3, 0)])


PAIR = Digraph.undirected(2, [(0, 1)])
PATH = Digraph.undirected(3, [(0, 1), (1, 2)])

SMALL = (
    hop("standard in fine steps, ring of 3", ring(3), IterationGap(), fine=True),
    hop("standard, undirected ring of 3", both_ways(3), IterationGap()),
    hop("standard, undirected ring of 3, reordered", both_ways(3), IterationGap(), REORDERED),
    hop("staleness 1, ring of 3", ring(3), IterationGap(staleness=1)),
    hop("NOTIFY-ACK, ring of 3", ring(3), IterationGap(notify_ack=True)),
    hop("hybrid, tokens max_ig 2 in fine steps, pair", PAIR, IterationGap(backup=1, staleness=1, max_ig=2), fine=True),
    hop("skips up to 2, hybrid, tokens max_ig 2 in fine steps, pair", PAIR,
        IterationGap(backup=1, staleness=1, max_ig=2, skip=SkipPolicy(limit=2)), fine=True),
    hop("skips of 3, staleness 2, tokens max_ig 3 in fine steps, pair", PAIR,
        IterationGap(max_ig=3, staleness=2, skip=SkipPolicy(limit=3, trigger=3)), fine=True),
    hop("skips up to 2 from 3 behind, staleness 1, tokens max_ig 3 in fine steps, pair", PAIR,
        IterationGap(max_ig=3, staleness=1, skip=SkipPolicy(limit=2, behind=3)), fine=True),
    hop("skips up to 3, backup 1, tokens max_ig 3 in fine steps, pair", PAIR,
        IterationGap(backup=1, max_ig=3, skip=SkipPolicy(limit=3)), fine=True),
    hop("NOTIFY-ACK, undirected ring of 3", both_ways(3), IterationGap(notify_ack=True)),
    hop("NOTIFY-ACK, tokens max_ig 1, ring of 3", ring(3), IterationGap(notify_ack=True, max_ig=1)),
    hop("backup (1,0,1), tokens max_ig 1, undirected ring of 3", both_ways(3),
        IterationGap(backup=(1, 0, 1), max_ig=1)),
    hop("tokens max_ig 2 in fine steps, ring of 3", ring(3), IterationGap(max_ig=2), fine=True),
    hop("staleness 1, tokens max_ig 2, ring of 3", ring(3), IterationGap(staleness=1, max_ig=2)),
    hop("tokens max_ig 1, diamond", diamond(), IterationGap(max_ig=1)),
    hop("backup 1, tokens max_ig 1, undirected ring of 3", both_ways(3), IterationGap(backup=1, max_ig=1)),
    hop("hybrid backup 1, staleness 1, tokens max_ig 1, undirected ring of 3", both_ways(3),
        IterationGap(backup=1, staleness=1, max_ig=1)),
    hop("skips up to 2, backup 1, tokens max_ig 2, path of 3", PATH,
        IterationGap(backup=1, max_ig=2, skip=SkipPolicy(limit=2))),
    hop("skips up to 2, hybrid, tokens max_ig 2, undirected ring of 3, at once", both_ways(3),
        IterationGap(backup=1, staleness=1, max_ig=2, skip=SkipPolicy(limit=2)), AT_ONCE),
    hop("NOTIFY-ACK, ring of 4", ring(4), IterationGap(notify_ack=True)),
    hop("standard, ring of 5", ring(5), IterationGap()),
    hop("tokens max_ig 2, undirected ring of 3", both_ways(3), IterationGap(max_ig=2)),
    hop("skips up to 2, staleness 1, tokens max_ig 2, ring of 3", ring(3),
        IterationGap(staleness=1, max_ig=2, skip=SkipPolicy(limit=2))),
    hop("skips up to 2, staleness 1, tokens max_ig 3, ring of 3", ring(3),
        IterationGap(staleness=1, max_ig=3, skip=SkipPolicy(limit=2))),
    hop("tokens max_ig 1, undirected ring of 4", both_ways(4), IterationGap(max_ig=1)),
    hop("staleness 1, ring of 5", ring(5), IterationGap(staleness=1)),
    hop("NOTIFY-ACK, ring of 5", ring(5), IterationGap(notify_ack=True)),
)  # fmt: skip

LARGE = (
    hop("tokens max_ig 2, ring of 5", ring(5), IterationGap(max_ig=2)),
    hop("tokens max_ig 1, ring of 6", ring(6), IterationGap(max_ig=1)),
    hop("backup 1, tokens max_ig 2, undirected ring of 3", both_ways(3), IterationGap(backup=1, max_ig=2)),
    hop("tokens max_ig 3, ring of 10, at once", ring(10), IterationGap(max_ig=3), AT_ONCE),
    hop("tokens max_ig 3, ring of 12, at once", ring(12), IterationGap(max_ig=3), AT_ONCE),
    hop("tokens max_ig 2, undirected ring of 4, folded", both_ways(4), IterationGap(max_ig=2), symmetry=True),
    hop("tokens max_ig 3, ring of 5, folded", ring(5), IterationGap(max_ig=3), symmetry=True),
    hop("NOTIFY-ACK, ring of 6", ring(6), IterationGap(notify_ack=True)),
    hop("staleness 2, ring of 4", ring(4), IterationGap(staleness=2)),
    hop("tokens max_ig 1, ring of 7, folded", ring(7), IterationGap(max_ig=1), symmetry=True),
)  # fmt: skip


def _possible(chosen: dict[str, Any]) -> bool:
    """What Hop refuses is left out, what may halt by its own rules, and what has no end of states."""
    graph, setting = chosen["graph"], _setting(chosen)
    try:
        check_setting(graph, setting)
    except InputError:
        return False
    backed = any(setting.backups(graph.num_workers))
    if backed and (setting.max_ig is None or not graph.is_symmetric):
        return False  # gaps without bound, or updates that wait without bound, and tokens that do not
    if graph == diamond() and (setting.skip is not None or setting.max_ig == 2 or chosen["suspicions"]):
        return False  # more states than the others together
    # An update that nobody needs may be overtaken for ever, or lie before a worker that has ended.
    lasting = backed or setting.skip is not None
    return not (lasting and chosen["suspicions"]) and not ((lasting or setting.staleness) and chosen["wire"])


def _setting(chosen: dict[str, Any]) -> IterationGap:
    graph, backup = chosen["graph"], chosen["backup"]
    spare = tuple(int(backup == "all" or (backup == "one" and v == 0)) for v in range(graph.num_workers))
    return IterationGap(
        max_ig=chosen["max_ig"],
        staleness=chosen["staleness"],
        backup=spare,
        notify_ack=chosen["notify_ack"],
        skip=chosen["skip"],
    )


def _make(words: str, chosen: dict[str, Any]) -> Configuration:
    """The configuration that a row stands for."""
    network = Network(reorder=chosen["wire"], suspicions=chosen["suspicions"])
    return hop(words, chosen["graph"], _setting(chosen), network, fine=chosen["fine"], symmetry=chosen["symmetry"])


FACTORS = Factors(
    {
        "graph": [
            Level(ring(3), "ring of 3", 100),
            Level(PATH, "path of 3", 100),
            Level(both_ways(3), "undirected ring of 3", 400),
            Level(diamond(), "diamond", 2000),
        ],
        "max_ig": [Level(None), Level(1, "tokens max_ig 1", 3), Level(2, "tokens max_ig 2", 10)],
        "staleness": [Level(0), Level(1, "staleness 1", 3)],
        "backup": [Level(""), Level("one", "a backup for worker 0", 3), Level("all", "backup 1", 10)],
        "notify_ack": [Level(False), Level(True, "NOTIFY-ACK", 3)],
        "skip": [Level(None), Level(SkipPolicy(limit=2), "skips up to 2", 3)],
        "fine": [Level(False), Level(True, "fine steps", 3)],
        "wire": [Level(False), Level(True, "reordered", 2)],
        "suspicions": [Level(0), Level(1, "one taken for dead", 10)],
        "symmetry": [Level(False), Level(True, "folded", 0.5)],
    },
    _make,
    _possible,
)
