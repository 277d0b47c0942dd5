"""Failures of workers, and which of them are equivalent: those that a schedule's symmetries map to one another.

A *symmetry* lets workers change places and keeps every group. These are used:

* in a rule, any two values of a digit, on all nodes at once: a group holds the nodes that agree outside its digits;
* on one node, any two local ranks that in every phase stand in the same block, or both in no group;
* where groups are listed, any two workers of one node that in every phase stand in the same group, or both in none.

Steps per round make no difference: they do not change the groups. A *class* is what such exchanges make of one failure;
its *representative* is the smallest of them, of those whose nodes have digits in order of first appearance, and whose
failed local ranks are the first of their kind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations, product

from partreduce.topo.cluster import Cluster
from partreduce.topo.failure_plan import FailurePlan, SurvivorRule
from partreduce.topo.rule import RuleView, digit_of, strides_of
from partreduce.topo.schedule import Schedule
from partreduce.topo.survivors import reapplied

Failure = tuple[int, ...]
"""The failed workers, ascending."""


@dataclass(frozen=True, slots=True)
class Symmetries:
    """Nodes with these digits, on each `size` local ranks; `kinds` has the first rank of its kind for each of them.

    Listed groups are one node without digits, whose local ranks are all workers.
    """

    radices: tuple[int, ...]
    size: int
    kinds: tuple[int, ...]

    @classmethod
    def of(cls, schedule: Schedule) -> Symmetries:
        """Those of a schedule of groups. Rules: O(size of the rule); listed groups: O(period · num_workers).

        Raises:
            ScheduleError: groups of one phase share a worker.
        """
        rule = schedule.rule(by_node=True)
        if rule is not None:
            return cls.of_rule(rule)
        columns = [schedule.cluster.node_of().tolist()]
        columns += [schedule.phase(index).labels().tolist() for index in range(schedule.period)]
        return cls((), schedule.num_workers, _firsts(list(zip(*columns, strict=True))))

    @classmethod
    def of_rule(cls, rule: RuleView) -> Symmetries:
        """Those of a rule. O(size of the rule)."""
        homes = [
            {rank: index for index, block in enumerate(phase) if block.makes_groups for rank in block.local}
            for phase in rule.phases
        ]
        keys = [tuple(home.get(rank, -1) for home in homes) for rank in range(rule.workers_per_node)]
        return cls(rule.radices, rule.workers_per_node, _firsts(keys))

    def representative(self, failed: Collection[int]) -> Failure:
        """Of the failure's class. Each order of its nodes is tried, of which a plan has at most `MAX_FAILURES`."""
        counts: dict[int, Counter[int]] = {}
        for worker in failed:
            counts.setdefault(worker // self.size, Counter())[self.kinds[worker % self.size]] += 1
        strides = strides_of(self.radices)
        firsts = {node: self._first_ranks(kinds) for node, kinds in counts.items()}
        found: list[Failure] = []
        for order in permutations(sorted(counts)):
            digits = [
                tuple(dict.fromkeys(digit_of(node, stride, radix) for node in order))
                for radix, stride in zip(self.radices, strides, strict=True)
            ]
            moved: list[int] = []
            for node in order:
                values = (
                    listed.index(digit_of(node, stride, radix)) * stride
                    for listed, radix, stride in zip(digits, self.radices, strides, strict=True)
                )
                start = sum(values) * self.size
                moved += [start + rank for rank in firsts[node]]
            found.append(tuple(sorted(moved)))
        return min(found)

    def classes(self, count: int, most: int | None = None) -> list[Failure]:
        """The representatives of all failures of `count` workers, in order; of more than `most` only some more.

        A failure of one worker more is, up to symmetries, a representative and a worker whose digits have a value of
        the failed nodes or the first other one, and whose local rank is the first of its kind that did not fail.
        """
        found: set[Failure] = {()}
        for _ in range(count):
            grown: set[Failure] = set()
            for like in (
                self.representative((*failed, worker)) for failed in found for worker in self._further(failed)
            ):
                grown.add(like)
                if most is not None and len(grown) > most:
                    break
            found = grown
        return sorted(found)

    def _further(self, failed: Failure) -> Iterator[int]:
        strides, gone = strides_of(self.radices), frozenset(failed)
        nodes = {worker // self.size for worker in failed}
        values = [
            range(min(radix, 1 + max((digit_of(node, stride, radix) for node in nodes), default=-1) + 1))
            for radix, stride in zip(self.radices, strides, strict=True)
        ]
        for digits in product(*values):
            first = sum(digit * stride for digit, stride in zip(digits, strides, strict=True)) * self.size
            met: set[int] = set()
            for rank, kind in enumerate(self.kinds):
                if kind not in met and first + rank not in gone:
                    met.add(kind)
                    yield first + rank

    def _first_ranks(self, counts: Counter[int]) -> list[int]:
        """So many local ranks of each kind, the first ones."""
        left, result = Counter(counts), []
        for rank, kind in enumerate(self.kinds):
            if left[kind]:
                left[kind] -= 1
                result.append(rank)
            if len(result) == counts.total():
                break
        return result


def _firsts(keys: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    """For every place the first one with the same key."""
    seen: dict[tuple[int, ...], int] = {}
    return tuple(seen.setdefault(key, place) for place, key in enumerate(keys))


def planned_classes(schedule: Schedule, most: int) -> list[Failure]:
    """One failure of each class that the plan covers, smaller ones first; of more than `most` only some more.

    Where a rule is applied again, failures are of one class if they leave as many nodes, and a symmetry of the rule on
    these maps what is missing of one to what is missing of the other. The last nodes failed as a whole, and so the
    others keep their numbers. Under All-Reduce all failures are equivalent, and none is listed.
    """
    plan = schedule.failure_plan
    if plan is None or plan.rule is SurvivorRule.ALL_REDUCE:
        return []
    if plan.rule is SurvivorRule.KEEP_GROUPS:
        symmetries = Symmetries.of(schedule)
        found = set(_failures_of_nodes(schedule, symmetries))
        for count in range(1, plan.failures + 1):
            found |= set(symmetries.classes(count, most=most))
    else:
        found = _classes_reapplied(schedule, plan, most)
    return sorted(found, key=by_size)


def _classes_reapplied(schedule: Schedule, plan: FailurePlan, most: int) -> set[Failure]:
    cluster, n = schedule.cluster, schedule.num_workers
    size = len(cluster.workers_of(0))
    found: set[Failure] = set()
    for gone in range(cluster.num_nodes):
        further = plan.failures - gone * size
        if further < 0 and (gone != 1 or n - size < 2):
            break
        left = cluster.num_nodes - gone
        whole = tuple(range(left * size, n))
        symmetries = Symmetries.of_rule(reapplied(schedule, left).view(Cluster.regular(left, size)))
        for count in range(max(0, further) + 1):
            classes = symmetries.classes(count, most=most)
            for missing in classes:
                lacks_node = size in Counter(worker // size for worker in missing).values()
                if (missing or whole) and (not lacks_node or len(classes) > most):
                    found.add((*missing, *whole))
    return found


def _failures_of_nodes(schedule: Schedule, symmetries: Symmetries) -> list[Failure]:
    """The representatives of the failures of one node each, where two workers or more are left."""
    cluster = schedule.cluster
    nodes = range(1 if symmetries.radices else cluster.num_nodes)
    failures = (cluster.workers_of(node) for node in nodes)
    return [symmetries.representative(failed) for failed in failures if cluster.num_workers - len(failed) >= 2]


def planned_failures(schedule: Schedule, plan: FailurePlan) -> Iterator[Failure]:
    """Every failure that a plan covers: of up to so many workers, smaller ones first; then those of larger nodes."""
    n, cluster = schedule.num_workers, schedule.cluster
    for count in range(1, plan.failures + 1):
        yield from combinations(range(n), count)
    for node in map(cluster.workers_of, range(cluster.num_nodes)):
        if len(node) > plan.failures and n - len(node) >= 2:
            yield tuple(sorted(node))


def by_size(failed: Failure) -> tuple[int, Failure]:
    """The order of failures: smaller ones first."""
    return len(failed), failed
