"""Claims about neighbors that keep a gap (strategy `neighbor` with `sync.iteration_gap`): Hop's settings as they run.

Where every reduce takes all updates of its step, rounds are D-PSGD's recursion, and what holds of matrices holds. With
staleness, backup workers or skips a reduce takes what is there, and these claims are all there is. In both cases who
waits for whom is the event graph's matter. The theorems and numbers stand in `verify/checker/gaps.py` and
`verify/checker/events.py`.
"""

from __future__ import annotations

from dataclasses import replace

from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.iteration_gap import EdgeWeighting, IterationGap
from partreduce.verify.base import Claim, Status, refuted
from partreduce.verify.graph import out_tree_of, prove_graph
from partreduce.verify.stated import Numbers, Stated
from partreduce.verify.stochastic import DOUBLY
from partreduce.verify.without_backup import prove_without_backup

EXPLORED = (
    "That the program obeys these rules is assumed; the machine that it runs was explored for small graphs "
    "(docs/internals/explorer.md)."
)
NONE = -1
"""There is no bound."""


def prove_kept_gap(schedule: Schedule, stated: Stated) -> tuple[Claim, ...]:
    """All claims; near-linear in edges but for those of matrices and of all pairs, which stop at stated sizes."""
    gap = schedule.strategy.sync
    assert isinstance(gap, IterationGap), "as its protocol says"
    if gap.takes_all:
        of_rounds = prove_graph(schedule, stated)
    else:
        mean = _mean(schedule, gap)
        of_rounds = (*([] if mean is None else [mean]), _consensus(schedule, gap, stated))
    return (*of_rounds, *_apart(schedule, gap, stated))


def essential_of_kept_gap(schedule: Schedule) -> frozenset[str]:
    """Besides order and queues: what must hold of matrices; that all agree, unless it depends on what comes late."""
    gap = schedule.strategy.sync
    if schedule.is_mixing:
        return frozenset({DOUBLY, "consensus"})
    assert isinstance(gap, IterationGap), "as its protocol says"
    # Where a reduce is no average a worker may run off, whichever updates come late.
    is_average = gap.weights is not EdgeWeighting.GRAPH or schedule.strategy.graphs[0].keeps_something
    return frozenset() if gap.has_backup and is_average else frozenset({"consensus"})


def _apart(schedule: Schedule, gap: IterationGap, stated: Stated) -> list[Claim]:
    live = (
        "Of the events of all workers (enter, send, reduce) take one that has happened least often, a send before a "
        "reduce before an enter: what it waits for without a token has happened, so nobody waits for ever."
    )
    if gap.skip is not None:
        live += " Nobody waits for a skipped update: whoever could use it has left its step."
    pairs = stated.numbers("gap-of-pairs")
    claims = [
        stated.claim("deadlock-free", f"{live} {EXPLORED}"),
        stated.claim("queues", _queues),
        stated.claim("gap", _gap),
        stated.claim("gap-of-pairs", _gap_of_pairs, {"from": pairs.get("from"), "to": pairs.get("to")}),
        stated.claim("skip", _skip),
        None if gap.takes_all else stated.claim("staleness", lambda numbers: _staleness(schedule, gap, numbers)),
        stated.claim("memory", lambda numbers: _memory(gap, numbers)),
    ]
    return [claim for claim in claims if claim is not None]


def _queues(numbers: Numbers) -> str:
    text = f"At most {max(numbers['update'], default=0)} updates of an in-neighbor wait for a worker"
    if "token" in numbers:
        free = numbers["token"].count(NONE)
        text += f", and at most {max(numbers['token'], default=0)} tokens of an out-neighbor"
        text += f"; {free} of {len(numbers['token'])} queues of tokens have no bound" if free else ""
    return f"{text}."


def _gap(numbers: Numbers) -> str:
    if (bound := numbers["bound"]) == NONE:
        return "One end of an edge can get ahead of the other without limit, where no path leads back."
    return f"The two ends of an edge are never more than {bound} rounds apart, and can be; each edge's bound is exact."


def _gap_of_pairs(numbers: Numbers) -> str:
    """The two workers that can be furthest apart."""
    bound = numbers["bound"]
    says = "gets ahead without limit of" if bound == NONE else f"is at most {bound} rounds ahead of"
    return f"Worker {numbers['to']} {says} worker {numbers['from']}; no two are further apart. Such a run exists."


def _skip(numbers: Numbers) -> str:
    return f"No worker skips more than {max(numbers['longest'])} steps at once, and none passes an out-neighbor."


def _mean(schedule: Schedule, gap: IterationGap) -> Claim | None:
    """Why the mean of all parameters moves: a property that a lossy setting cannot have, unless nobody listens."""
    spare = gap.backups(schedule.num_workers)
    listened = (edge for edge in schedule.strategy.graphs[0].edges() if edge[2] and (gap.staleness or spare[edge[1]]))
    source, target, weight = next(listened, (0, 0, 0))
    if not weight:
        return None
    if gap.skip is not None:
        how = "a worker that skips leaves updates out that its neighbors took in its stead"
    elif gap.staleness:
        how = "a worker may average an update of another step than its neighbor averages of it, or none"
    else:
        how = "a worker may do without an update while the one it came from takes its own"
    text = (
        f"{how}: the columns of such a round do not sum to 1, and the mean of all workers moves. Over edge "
        f"{source}→{target} with weight {weight} worker {target} may keep what worker {source} gives away."
    )
    claim = refuted("mean-preserved", text, {"edge": [int(source), int(target)], "weight": str(weight)})
    return replace(claim, is_property=True)


def _consensus(schedule: Schedule, gap: IterationGap, stated: Stated) -> Claim:
    if gap.has_backup:
        return prove_without_backup(schedule, gap, stated)
    claim = out_tree_of(schedule, counts_weights=gap.weights == "graph")
    if claim.status is not Status.PROVED:
        return claim
    text = (
        f"{claim.explanation} Every edge is followed again and again, with a delay that staleness and gap bound, so "
        "all workers come to one common value. It need not be the mean."
    )
    return Claim(claim.claim, claim.status, text, claim.witness, claim.entry)


def _staleness(schedule: Schedule, gap: IterationGap, numbers: Numbers) -> str:
    text = "A reduce averages updates of its own round"
    if gap.staleness:
        text += (
            f", of at most {gap.staleness} rounds before it, and of workers that are ahead at most {numbers['ahead']} "
            "after it"
        )
    return text + (
        "; an update is what its worker had before it entered the round." if schedule.strategy.sync.lag else "."
    )


def _memory(gap: IterationGap, numbers: Numbers) -> str:
    newest = ", the newest of each," if gap.staleness else ""
    return (
        f"A worker keeps at most {numbers['places']} models of its in-neighbors{newest} in places that are set aside "
        f"at the start, and has at most {numbers['connections']} neighbors. What it has on the way to others is "
        "bounded by the transport."
    )
