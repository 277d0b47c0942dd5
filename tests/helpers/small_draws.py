"""Small schedules drawn from a seed: groups, rules and graphs; every third seed has relaxations of any kind.

Every seventh seed has a worker in two groups, or a local rank in two blocks.
"""

from fractions import Fraction
from math import prod
from random import Random

from helpers.small import of_edges, of_groups, of_rule
from partreduce import Cluster
from partreduce.strategies import Block, Group

FACTORS = [1, 1, 1, 1, Fraction(1, 2), Fraction(4, 3), Fraction(7, 4), 0, 2, Fraction(5, 2), Fraction(-1, 2)]
TAME = [1, 1, Fraction(1, 2), Fraction(4, 3), 0]


def random_groups(seed, **options):
    chance = Random(seed)
    n, factors = chance.randint(2, 7), FACTORS if seed % 3 == 0 else TAME
    phases = []
    for _ in range(chance.randint(1, 4)):
        order = chance.sample(range(n), n)
        groups = []
        while len(order) > 1:
            size = chance.randint(1, min(4, len(order)))
            if size > 1:
                groups.append(Group(tuple(sorted(order[:size])), Fraction(chance.choice(factors))))
            order = order[size:]
        if seed % 7 == 0 and groups:
            outside = chance.choice([w for w in range(n) if w not in groups[0].members] or [0])
            groups.append(Group(tuple(sorted({outside, groups[0].members[0]})), Fraction(1)))
        phases.append([group for group in groups if len(group.members) > 1])
    return of_groups("explicit", Cluster.regular(n, 1), *phases, prologue=seed % 3, **options)


def random_rule(seed, radices=((2,), (3,), (2, 2), (2, 3)), **options):
    """Return a rule in which some local ranks may be in no block."""
    chance = Random(seed)
    radices = chance.choice(radices)
    size, factors = chance.randint(1, 3), FACTORS if seed % 3 == 0 else TAME
    phases = []
    for _ in range(chance.randint(1, 3)):
        ranks, blocks = chance.sample(range(size), size), []
        while ranks:
            count = chance.randint(1, len(ranks))
            across = tuple(d for d in range(len(radices)) if chance.random() < 0.6)
            blocks.append(Block(tuple(sorted(ranks[:count])), across, Fraction(chance.choice(factors))))
            ranks = ranks[count + (chance.random() < 0.2) :]
        if seed % 7 == 0:
            blocks.append(Block((0,), (0,)))
        phases.append(tuple(blocks))
    return of_rule("rule", Cluster.regular(prod(radices), size), radices, tuple(phases), **options)


def random_graph(seed, **options):
    chance = Random(seed)
    n, rounds = chance.randint(2, 6), []
    for _ in range(chance.randint(1, 3)):
        weight = chance.choice([Fraction(1, n), Fraction(1, 2), Fraction(1)])
        kind = chance.choice(["undirected", "shift", "random"])
        if kind == "shift":
            step = chance.randint(1, n - 1)
            edges = [(v, (v + step) % n, weight) for v in range(n)]
        else:
            pairs = [(u, v) for u in range(n) for v in range(u) if chance.random() < 0.5] or [(1, 0)]
            edges = [(u, v, Fraction(1, n)) for u, v in pairs]
            if kind == "undirected":
                edges += [(v, u, w) for u, v, w in edges]
        rounds.append(edges)
    return of_edges("graph", Cluster.regular(n, 1), *rounds, **options)
