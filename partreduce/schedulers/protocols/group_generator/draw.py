"""The draws of the group generator: random groups, global division, inter and intra phases, slow-worker filter.

Sources: Prague (Luo et al., ASPLOS 2020, sections 4 and 5) for the divisions and the filter. Two rules are our own: the
rule for initiators that lag behind, because a slow initiator that starts a division blocks fast workers, and the
division node-then-all, because groups across nodes in every second round occupy the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from hashlib import shake_256

from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.strategies.dynamic_groups import DynamicGroups, GroupSplit, SlowWorkerPolicy

Members = tuple[int, ...]

PATIENCE = 2
"""How many requests in a row may leave a worker without a group; its next one gets a group in any case."""
SLOW_WORKER_GROUP_SIZE = 2
"""The size of the small group that a lagging initiator gets."""
CHOICE_BITS = 61
"""Position of the first bit of a draw's random number that selects among known groups; lower bits order workers."""
SLOW_FACTOR = 2
"""With policy `defer`, a worker is slow if its rounds take at least this many times as long as the median worker's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratorSetting:
    """The settings of the group generator: those of the strategy `DynamicGroups`, and the node of worker w, `nodes[w]`.

    `max_known` bounds the distinct groups of a worker: a worker with that many is only drawn into groups that were
    drawn before (None: no bound, and no record of groups).
    """

    nodes: tuple[int, ...]
    group_size: int = 3
    division: GroupSplit = GroupSplit.INTER_INTRA
    slow_worker_policy: SlowWorkerPolicy = SlowWorkerPolicy.PAIR_LOCALLY
    slow_threshold: int | None = 4
    all_every: int = 16
    seed: int = 0
    max_known: int | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.group_size <= len(self.nodes):
            raise InputError(f"group_size: is {self.group_size}; it lies between 2 and {len(self.nodes)} workers")
        if self.max_known is not None and self.max_known < 1:
            raise InputError(f"max_known: is {self.max_known}; a worker belongs to at least 1 group")

    @classmethod
    def of(cls, strategy: DynamicGroups, cluster: Cluster) -> GeneratorSetting:
        rules = {field.name: getattr(strategy, field.name) for field in fields(cls) if field.name != "nodes"}
        return cls(nodes=tuple(cluster.node_of().tolist()), **rules)

    @property
    def num_workers(self) -> int:
        return len(self.nodes)


@dataclass(frozen=True, slots=True)
class Situation:
    """The input of a draw: what the generator knows when it draws groups for the request of one worker, the initiator.

    `alive` are the workers that take part, `idle` those of them with an empty buffer (including the initiator),
    `counts` the rounds requested so far, `alone` the initiator's requests in a row without a group, `known` the groups
    drawn before, `salt` the random number of this draw, `slow` the workers that compute slowly (None: slowness follows
    from `counts`), `due` whether it is time for a group of all.
    """

    initiator: int
    alive: frozenset[int]
    idle: frozenset[int]
    counts: tuple[int, ...]
    alone: int
    known: tuple[Members, ...]
    salt: int
    slow: frozenset[int] | None = None
    due: bool = False


class Drawing:
    """The rules by which the group generator draws groups, under the settings of one strategy (`GeneratorSetting`).

    A Drawing has no state: `draw` computes the groups from a `Situation` alone, which also has the random number.
    """

    def __init__(self, setting: GeneratorSetting) -> None:
        self.setting = setting

    def draw(self, now: Situation) -> tuple[Members, ...]:
        """Return the groups drawn for one request, in the order in which they join the buffers.

        Each has at least two workers. The initiator is in at least one of them, unless a division leaves it without a
        group; after `PATIENCE` requests in a row without a group it gets one, as long as any other worker takes part.
        """
        if self.is_limited(now):
            return self.around(now, self.small_partners(now), SLOW_WORKER_GROUP_SIZE)
        if self.setting.division == GroupSplit.NODE_THEN_ALL:
            return self.node_then_all(now)
        if self.setting.division == GroupSplit.RANDOM or now.alone >= PATIENCE:
            return self.around(now, self.partners(now), self.setting.group_size)
        taking_part = self.fast_enough(now, now.idle)
        if self.setting.division == GroupSplit.GLOBAL:
            return self.divided(now, taking_part)
        return (*self.inter(now, taking_part), *self.intra(now, taking_part))

    def is_limited(self, now: Situation) -> bool:
        """Whether the initiator (which requested a group) lags behind, and so gets only one small group."""
        return self.setting.slow_worker_policy != SlowWorkerPolicy.PAPER and self.is_slow_worker(now)

    def is_slow_worker(self, now: Situation) -> bool:
        """Whether the initiator is in `now.slow` or, if that is None, is `slow_threshold` rounds behind the fastest."""
        if self.setting.slow_threshold is None:
            return False
        if now.slow is not None:
            return now.initiator in now.slow
        ahead = max(now.counts[worker] for worker in now.alive)
        return ahead - now.counts[now.initiator] >= self.setting.slow_threshold

    def fast_enough(self, now: Situation, workers: frozenset[int]) -> frozenset[int]:
        """Return the workers w that pass the paper's filter: c_i − c_w < threshold, c being the rounds requested.

        The initiator i, whose request is answered, always passes. If `now.slow` is known, all workers outside it pass
        instead: by counts, a worker that was delayed once would be excluded forever, and so would all workers that it
        then averages with, until no group spans nodes.
        """
        threshold = self.setting.slow_threshold
        if threshold is None:
            return workers
        if now.slow is not None:
            return (workers - now.slow) | (workers & {now.initiator})
        mine = now.counts[now.initiator]
        return frozenset(worker for worker in workers if mine - now.counts[worker] < threshold)

    def partners(self, now: Situation) -> list[int]:
        """Return the other workers that pass the filter, or all others if none passes, in a random order."""
        everybody = now.alive - {now.initiator}
        return order_from_salt(self.fast_enough(now, everybody) or everybody, now.salt)

    def slow(self, costs: dict[int, int]) -> frozenset[int] | None:
        """Return the workers that compute slowly, by each worker's compute time of a round, `costs` (0: unknown).

        The result is None under the policies that judge by the number of rounds requested instead.
        """
        if self.setting.slow_worker_policy != SlowWorkerPolicy.DEFER or self.setting.slow_threshold is None:
            return None
        known = sorted(cost for cost in costs.values() if cost)
        middle = known[(len(known) - 1) // 2] if known else 0
        return frozenset(worker for worker, cost in costs.items() if middle and cost >= SLOW_FACTOR * middle)

    def small_partners(self, now: Situation) -> list[int]:
        """Return the candidates for a lagging initiator's group, in random order.

        They are the first non-empty set of: idle workers of its node, all workers of its node, idle workers, all
        workers.
        """
        others = now.alive - {now.initiator}
        if now.slow is not None:
            others = self.fast_enough(now, others) or others
        local = frozenset(w for w in others if self.setting.nodes[w] == self.setting.nodes[now.initiator])
        return order_from_salt(local & now.idle or local or others & now.idle or others, now.salt)

    def around(self, now: Situation, partners: Sequence[int], size: int) -> tuple[Members, ...]:
        """Return one group of `size` workers, the initiator and the first partners; () without partners.

        If the initiator is in `max_known` distinct groups already, the group is one of these.
        """
        if not partners:
            return ()
        if self.is_bounded(now, now.initiator):
            allowed = {now.initiator, *partners}
            known = [group for group in now.known if now.initiator in group and now.alive.issuperset(group)]
            fitting = [group for group in known if allowed.issuperset(group)] or known
            if fitting:
                return (fitting[(now.salt >> CHOICE_BITS) % len(fitting)],)
        return (_members((now.initiator, *partners[: size - 1])),)

    def divided(self, now: Situation, workers: frozenset[int]) -> tuple[Members, ...]:
        """Partition `workers` into random groups of the group size; remaining workers form a smaller group or skip."""
        order, groups, size = order_from_salt(workers, now.salt), list[Members](), self.setting.group_size
        left = set(order)
        for worker in order:
            if worker not in left:
                continue
            partners = [other for other in order if other in left and other != worker][: size - 1]
            group = _members((worker, *partners))
            if any(self.is_bounded(now, member) for member in group) and group not in now.known:
                known = [g for g in now.known if worker in g and left.issuperset(g)]
                group = known[(now.salt >> CHOICE_BITS) % len(known)] if known else (worker,)
            left.difference_update(group)
            if len(group) > 1:
                groups.append(group)
        return tuple(groups)

    def inter(self, now: Situation, workers: frozenset[int]) -> tuple[Members, ...]:
        """Return random groups of node heads (one per node) across nodes, and of all others inside their node."""
        heads = frozenset(min(here) for here in self.by_node(workers))
        groups = list(self.divided(now, heads))
        for here in self.by_node(workers - heads):
            groups += self.divided(now, here)
        return tuple(groups)

    def intra(self, now: Situation, workers: frozenset[int]) -> tuple[Members, ...]:  # noqa: ARG002 - as the others
        """Return one group per node: all of its `workers`, if they are at least two."""
        return tuple(_members(here) for here in self.by_node(workers) if len(here) > 1)

    def node_then_all(self, now: Situation) -> tuple[Members, ...]:
        """Return the group that the division node-then-all gives the initiator, the worker whose request is answered.

        If a group of all is due (`now.due`), it has all workers that pass the filter `fast_enough`; busy ones enter it
        after the groups in their buffers. Otherwise it has the idle workers on the initiator's node that pass; busy
        ones, too, if the initiator got no group `PATIENCE` times in a row, and then all if fewer than two pass.
        """
        if now.due:
            return self.all_of(now, self.fast_enough(now, now.alive))
        patient = now.alone >= PATIENCE
        here = self.setting.nodes[now.initiator]
        local = frozenset(w for w in (now.alive if patient else now.idle) if self.setting.nodes[w] == here)
        passed = self.fast_enough(now, local)
        return self.all_of(now, local if patient and len(passed) < 2 else passed)

    def all_of(self, now: Situation, workers: frozenset[int]) -> tuple[Members, ...]:
        """Return one group of the initiator and all `workers`.

        If the initiator is in `max_known` distinct groups already, the result is the largest of these within `workers`.
        """
        group = _members(workers | {now.initiator})
        if self.is_bounded(now, now.initiator):
            known = [other for other in now.known if now.initiator in other and workers.issuperset(other)]
            group = max(known, key=len, default=group)
        return (group,) if len(group) > 1 else ()

    def is_due(self, now: Situation, apart: int) -> bool:
        """Whether a group of all workers is due: after `all_every` requests per worker that is not slow.

        `apart` is the number of all requests since the last group of all.
        """
        if self.setting.division != GroupSplit.NODE_THEN_ALL or self.is_limited(now):
            return False
        fast = len(self.fast_enough(now, now.alive))
        return fast > 1 and apart >= self.setting.all_every * fast

    def further(self, apart: int) -> int:
        """Return `apart`, the number of requests since the last group of all workers, plus one, up to a limit.

        The result is 0 if the way to divide workers into groups (`division`) has no groups of all.
        """
        if self.setting.division != GroupSplit.NODE_THEN_ALL:
            return 0
        return min(apart + 1, self.setting.all_every * self.setting.num_workers)

    def by_node(self, workers: frozenset[int]) -> list[frozenset[int]]:
        nodes = sorted({self.setting.nodes[worker] for worker in workers})
        return [frozenset(w for w in workers if self.setting.nodes[w] == node) for node in nodes]

    def is_bounded(self, now: Situation, worker: int) -> bool:
        """Whether a worker is in as many distinct groups as `max_known` allows."""
        bound = self.setting.max_known
        return bound is not None and sum(worker in group for group in now.known) >= bound


def _members(workers: Sequence[int] | frozenset[int]) -> Members:
    return tuple(sorted(workers))


def order_from_salt(workers: frozenset[int], salt: int) -> list[int]:
    """Return permutation number `salt` of the workers; 0..k!−1 give each order of k workers once (Lehmer code)."""
    rest, order = sorted(workers), []
    while rest:
        salt, place = divmod(salt, len(rest))
        order.append(rest.pop(place))
    return order


def salt_of(seed: int, draw: int, num_workers: int) -> int:
    """Return the random number of draw number `draw`: a hash of seed and draw, large enough to pick any permutation."""
    num_bytes = num_workers.bit_length() * num_workers // 8 + 16
    return int.from_bytes(shake_256(f"{seed}:{draw}".encode()).digest(num_bytes), "big")
