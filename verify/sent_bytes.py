"""Fact `sent-bytes`: what one step sends and what is on its way, for each byte of what an operation averages.

The theorem and the shares of each operation stand in `verify/checker/facts/sent_bytes.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from math import ceil, lcm
from typing import Any

import numpy as np
import numpy.typing as npt

from partreduce.topo.rule import RulePhase, RuleView
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies.axes import CodecScope, How
from partreduce.topo.strategies.fragments import most_in_flight
from partreduce.verify.base import Claim, fact
from partreduce.verify.checker.facts.sent_bytes import Sent, Spread, of_operation, said, written
from partreduce.verify.forms import of_block, of_everybody
from partreduce.verify.view import explicit_view, rule_view

NAME = "sent-bytes"


def prove_sent_bytes(schedule: Schedule) -> Claim:
    """Count them. Rules: O(blocks); explicit groups and graphs: O(num_workers · period)."""
    strategy = schedule.strategy
    parts, pace = strategy.what.num_fragments, schedule.pace_of(0)
    flying = max(1, strategy.when.lag)
    if strategy.lacks_newest:
        flying = most_in_flight(parts, pace, strategy.when.late_steps)
    is_plain_first = strategy.how.where is CodecScope.ACROSS_NODES
    in_flight = flying * (Fraction(1) if is_plain_first else written(_how(strategy.how)))
    of_worker, of_node = (max(column) for column in zip(*_rounds(schedule), strict=True))
    what = "the largest fragment" if parts > 1 else "gradients" if strategy.averages_gradients else "the model"
    sent = f"{float(of_worker):.6g} bytes leave a worker and {float(of_node):.6g} a node"
    text = (
        f"For each byte of {what} at most {sent} in one {'turn' if parts > 1 else 'round'}, of which a step begins at "
        f"most one, and at most {float(in_flight):.6g} are on their way at a time. What rounding up to whole numbers "
        "and blocks adds is not counted, and sums go around one ring in the order of ranks."
    )
    return fact(NAME, text, **said(parts, of_worker, of_node, in_flight))


def in_bytes(claim: Claim, model_bytes: int) -> dict[str, int]:
    """The numbers of the fact in bytes, rounded up, for a model of this size that is cut into equal fragments."""
    assert claim.numbers is not None, "a fact"
    shares = ((name, Fraction(claim.numbers[name])) for name in ("of_worker", "of_node", "in_flight"))
    return {name: ceil(share * model_bytes / claim.numbers["parts"]) for name, share in shares}


def _how(how: How) -> dict[str, Any]:
    return {"form": how.form.value, "codec": how.codec.value, "where": how.where.value, "block": how.block}


def _rounds(schedule: Schedule) -> Iterator[Sent]:
    """What leaves the busiest worker and node in every round of the period and the prologue."""
    rule, how = rule_view(schedule), _how(schedule.strategy.how)
    if schedule.prologue:
        yield _of_everybody(schedule, how)
    if rule is not None:
        yield from (_of_blocks(rule, blocks, schedule, how) for blocks in rule.phases)
    for phase in explicit_view(schedule) or ():
        yield _of_groups(schedule, phase.members, phase.offsets, how)
    node_of = schedule.cluster.node_of()
    for graph in schedule.strategy.graphs:
        sources, targets = node_of[graph.sources], node_of[graph.targets]
        crossing = np.bincount(sources[sources != targets], minlength=1)
        yield Fraction(int(np.bincount(graph.sources, minlength=1).max())), Fraction(int(crossing.max()))


def _of_everybody(schedule: Schedule, how: Mapping[str, Any]) -> Sent:
    n, spread = schedule.num_workers, of_everybody(schedule)
    if schedule.cluster.workers_per_node is None:
        return _of_groups(schedule, np.arange(n), np.array([0, n]), how)
    return of_operation(how, Spread(n, spread.inside, spread.nodes, spread.inside, int(spread.nodes > 1)))


def _of_blocks(rule: RuleView, phase: RulePhase, schedule: Schedule, how: Mapping[str, Any]) -> Sent:
    """Each node has one group of every block."""
    of_worker, of_node = Fraction(0), Fraction(0)
    for block in (block for block in phase if block.makes_groups):
        spread = of_block(rule, schedule, block.local, block.across)
        if spread.size == schedule.num_workers:
            return _of_everybody(schedule, how)
        sent = of_operation(how, Spread(spread.size, spread.inside, spread.nodes, spread.inside, int(spread.nodes > 1)))
        of_worker, of_node = max(of_worker, sent[0]), of_node + sent[1]
    return of_worker, of_node


def _of_groups(
    schedule: Schedule, members: npt.NDArray[Any], offsets: npt.NDArray[Any], how: Mapping[str, Any]
) -> Sent:
    """Of explicit groups, each `members[offsets[g]:offsets[g + 1]]`, ascending. Each shape is worked out once."""
    if not len(members):
        return Fraction(0), Fraction(0)
    sizes, num_nodes = np.diff(offsets), schedule.cluster.num_nodes
    group, node = np.repeat(np.arange(len(sizes)), sizes), schedule.cluster.node_of()[members]
    following = np.arange(1, len(members) + 1)
    following[offsets[1:] - 1] = offsets[:-1]
    keys, place, here = np.unique(group * num_nodes + node, return_inverse=True, return_counts=True)
    leaving = np.bincount(place, weights=node != node[following]).astype(np.int64)
    of, at = keys // num_nodes, keys % num_nodes
    spans, firsts = np.bincount(of), np.searchsorted(of, np.arange(len(sizes)))
    is_even = np.maximum.reduceat(here, firsts) == np.minimum.reduceat(here, firsts)
    inside, nodes = np.where(is_even, here[firsts], sizes), np.where(is_even, spans, 0)
    shapes, which = np.unique(
        np.stack([sizes[of], inside[of], nodes[of], here, leaving], 1), axis=0, return_inverse=True
    )
    sent = [of_operation(how, Spread(*map(int, shape))) for shape in shapes]
    common = lcm(*(of_node.denominator for _, of_node in sent))
    totals = np.zeros(num_nodes, dtype=object)
    np.add.at(totals, at, np.array([int(of_node * common) for _, of_node in sent], dtype=object)[which.ravel()])
    return max(of_worker for of_worker, _ in sent), Fraction(int(max(totals)), common)
