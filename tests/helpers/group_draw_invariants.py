"""Laws that every draw of the group generator obeys, checked for all idle sets, orders and progress of few workers."""

from dataclasses import replace
from itertools import combinations, product

from partreduce.schedulers.protocols.group_generator.draw import PATIENCE, SLOW_WORKER_GROUP_SIZE, Situation
from partreduce.strategies import GroupSplit, SlowWorkerPolicy


def situations(setting, *, salts=(0, 1, 5, 11), known=()):
    """Yield situations: every idle set with the initiator in it, several step counts, and all patience levels."""
    n = setting.num_workers
    levels = (0,) if setting.slow_threshold is None else (0, setting.slow_threshold - 1, setting.slow_threshold)
    everybody = frozenset(range(n))
    for initiator in range(n):
        others = sorted(everybody - {initiator})
        for size in range(n):
            for chosen in combinations(others, size):
                for high in product(levels, repeat=n if n < 5 else 2):
                    counts = (*high, *(0,) * (n - len(high)))
                    for alone in (0, PATIENCE):
                        for salt in salts:
                            idle = frozenset((initiator, *chosen))
                            now = Situation(initiator, everybody, idle, counts, alone, known, salt)
                            yield now
                            if setting.division == GroupSplit.NODE_THEN_ALL:
                                yield replace(now, due=True)


def broken_law(drawing, **chosen):
    """Return the first law that a draw breaks in `situations(drawing.setting, **chosen)`, None if all hold."""
    for now in situations(drawing.setting, **chosen):
        if now.due and not drawing.is_due(now, 10**6):
            continue  # a meeting of one is not called
        problem = problem_of(drawing.setting, now, drawing.draw(now))
        if problem is not None:
            return problem
    return None


def problem_of(setting, now, groups):
    """Return what is wrong with the groups of one draw by the paper's text; None if nothing."""
    threshold, mine = setting.slow_threshold, now.counts[now.initiator]
    if any(len(set(group)) < 2 or list(group) != sorted(set(group)) for group in groups):
        return "groups have two members or more, in order"
    if now.alone >= PATIENCE and len(now.alive) > 1 and not any(now.initiator in group for group in groups):
        return "who was left alone twice gets a group"
    ahead = max(now.counts[w] for w in now.alive)
    if setting.slow_worker_policy != SlowWorkerPolicy.PAPER and threshold is not None and ahead - mine >= threshold:
        local = {w for w in now.alive if setting.nodes[w] == setting.nodes[now.initiator]}
        right = len(groups) == 1 and now.initiator in groups[0] and len(groups[0]) == SLOW_WORKER_GROUP_SIZE
        fits = right and (len(local) == 1 or local.issuperset(groups[0]))
        return None if fits else "a straggler gets one small group on its own node"
    passed = {w for w in now.alive if threshold is None or mine - now.counts[w] < threshold or w == now.initiator}
    if setting.division == GroupSplit.NODE_THEN_ALL:
        return _node_then_all(setting, now, groups, passed)
    if setting.division == GroupSplit.RANDOM or now.alone >= PATIENCE:
        allowed = passed if len(passed) > 1 else now.alive
        right = len(groups) == 1 and now.initiator in groups[0] and allowed.issuperset(groups[0])
        full = right and len(groups[0]) == min(setting.group_size, len(allowed))
        return None if full else "a random group is full and passes the filter"
    passed &= now.idle
    if any(not passed.issuperset(group) for group in groups):
        return "only idle workers that pass the filter are divided"
    if setting.division == GroupSplit.GLOBAL:
        return _partition(groups, passed, setting.group_size)
    return _phases(setting, groups, passed)


def _node_then_all(setting, now, groups, passed):
    """Check a draw under node-then-all, as docs/strategies/groups.md defines it.

    All workers that pass the filter are in the group if an average of all is due; else the idle ones of the node; if
    there are too few and the initiator was alone before, the node.
    """
    local = {w for w in now.alive if setting.nodes[w] == setting.nodes[now.initiator]}
    if now.due:
        right = passed
    elif now.alone >= PATIENCE:
        right = passed & local if len(passed & local) > 1 else local
    else:
        right = passed & local & now.idle
    expected = [tuple(sorted(right))] if len(right) > 1 else []
    return None if list(groups) == expected else "all meet when that is due, and a node's idle workers otherwise"


def _partition(groups, workers, size):
    members = [w for group in groups for w in group]
    if len(members) != len(set(members)):
        return "global division partitions the idle workers"
    left = len(workers) - len(members)
    sizes = sorted(map(len, groups))
    remainder = len(workers) % size
    right = [size] * (len(workers) // size) + ([remainder] if remainder > 1 else [])
    if sizes != sorted(right) or left != (remainder == 1):
        return "global division partitions the idle workers"
    return None


def _phases(setting, groups, workers):
    """Check a draw in two phases: a partition with each node's first worker across nodes, then one group per node."""
    nodes = [sorted(w for w in workers if setting.nodes[w] == node) for node in sorted(set(setting.nodes))]
    intra = [tuple(here) for here in nodes if len(here) > 1]
    count = len(groups) - len(intra)
    if count < 0 or list(groups[count:]) != intra:
        return "intra groups are the nodes"
    heads = {here[0] for here in nodes if here}
    first = groups[:count]
    problem = _partition([g for g in first if heads.issuperset(g)], heads, setting.group_size)
    if problem is None:
        for here in nodes:
            rest = set(here) - heads
            problem = problem or _partition([g for g in first if rest.issuperset(g)], rest, setting.group_size)
    mixed = [g for g in first if not heads.issuperset(g) and not any(set(here) - heads >= set(g) for here in nodes)]
    return "inter groups join heads, or others of one node" if problem or mixed else None
