"""Corrupted certificates and schedules, hashes recomputed: no false claim is accepted, and the refusal says where."""

from __future__ import annotations

import copy
import hashlib
import json
import random
from fractions import Fraction

import numpy as np
import pytest

from helpers.dense_schedules import dense, refusal, steady_figures
from preduce.schedulers.registry import build
from preduce.topo.cluster import Cluster
from preduce.topo.document.canonical import schedule_sha256
from preduce.topo.document.schedule import dump_schedule, load_schedule
from preduce.topo.errors import InputError
from preduce.topo.phase import Group, Phase
from preduce.topo.rule import Block
from preduce.topo.schedule import Schedule
from preduce.topo.strategies import AllReduce, GroupPhases, Neighbor, Round, RulePhases, Static
from preduce.verify import checker, prove

COUNT = 1000
STEADY = ("disagreement", "drift-worker", "drift-node")
"""Claims whose checks take milliseconds: fewer of them here, and more in test_steady_state_claims.py."""


def explicit(n, *phases, **options):
    return Schedule(
        "x",
        Cluster.regular(n, 1),
        Static(phases=GroupPhases(tuple(Phase.from_groups(n, p) for p in phases)), **options),
    )


def rule(radices, size, *phases):
    m = int(np.prod(radices))
    return Schedule("r", Cluster.regular(m, size), Static(phases=RulePhases(radices, phases)))


def graph(n, *rounds):
    return Schedule("g", Cluster.regular(n, 1), Neighbor(rounds=tuple(Round.from_edges(n, r) for r in rounds)))


def half(*pair, a=Fraction(1, 2)):
    return Group(pair, 2 * a)


def shift(n, weight, step=1):
    return [(i, (i + step) % n, weight) for i in range(n)]


SQUARE = [(i, j, Fraction(1, 3)) for i, j in ((0, 1), (1, 2), (2, 3), (3, 0)) for i, j in ((i, j), (j, i))]
SCHEDULES = {
    "rule": build("prague-figure-10", Cluster.regular(4, 2)),
    "rule-exact": rule((2, 3), 2, (Block((0, 1)),), (Block((0,), (0, 1)), Block((1,), (0, 1)))),
    "rule-relaxed": rule(
        (2,), 2, (Block((0, 1), (), Fraction(4, 3)),), (Block((0,), (0,), Fraction(1, 2)), Block((1,), (0,)))
    ),
    "explicit": explicit(6, [[0, 1], [2, 3, 4]], [[1, 2], [4, 5]], [[0, 5]], prologue=2),
    "explicit-exact": explicit(6, [[0, 5]], [[0, 1, 2], [3, 4, 5]], [[0, 3], [1, 4], [2, 5]]),
    "relaxed-exact": explicit(
        6,
        [[0, 1], [2, 3], [4, 5]],
        [half(0, 2, a=Fraction(2, 3)), half(1, 4, a=Fraction(2, 3)), half(3, 5, a=Fraction(2, 3))],
        [[0, 1], [2, 3], [4, 5]],
    ),
    "negative": explicit(3, [Group((0, 1, 2), Fraction(7, 4))]),
    "swaps": explicit(4, [[0, 1], [2, 3]], [Group((1, 2), Fraction(2))], [[0, 1], [2, 3]]),
    "pairs-of-7": explicit(7, [[0, 1], [2, 3], [4, 5]], [[1, 2], [3, 4], [5, 6]], [[0, 6]]),
    "allreduce": Schedule("a", Cluster.irregular([[0, 1, 2], [3, 4]]), AllReduce(pace=(1, 2, 1, 1, 3))),
    "graph": graph(4, SQUARE),
    "graph-lazy-shift": graph(5, shift(5, Fraction(1, 3)), shift(5, Fraction(1, 4), 2)),
    "graph-de-bruijn": graph(
        4, [(i, (2 * i + a) % 4, Fraction(1, 2)) for i in range(4) for a in (0, 1) if (2 * i + a) % 4 != i]
    ),
}  # fmt: skip


def wide(n=48 + 2):
    """A schedule too large for exact pivots."""
    first = [range(i, i + 2) for i in range(0, n, 2)]
    return explicit(n, first, [range(0, n, 2), range(1, n, 2)])


def spread(n=48 + 2):
    """A schedule too large for exact pivots that one period does not bring to the mean."""
    return explicit(n, [range(i, i + 5) for i in range(0, n, 5)], [[i, (i + 7) % n] for i in range(0, n - 7, 14)])


def modular():
    """Exact by relaxed pairs, too large for the exact product: the pattern of six workers, then across copies."""
    copies, base = 22, SCHEDULES["relaxed-exact"]
    phases = [
        [Group(tuple(6 * c + w for w in g.members), g.relax) for c in range(copies) for g in base.phase(t)]
        for t in range(base.period)
    ]
    phases.append([range(r, 6 * copies, 6) for r in range(6)])
    return explicit(6 * copies, *phases)


def certified(schedule):
    """The raw schedule and its certificate."""
    return dump_schedule(schedule), prove(schedule).certificate


# The oracle, on the dense floats of helpers.dense_schedules.


def is_true(entry, raw) -> bool:
    """Whether the statement that an entry makes about a schedule is true."""
    listed, matrices = dense(raw)
    n, period = len(matrices[0]), len(matrices)
    product = np.eye(n)
    for w in matrices:
        product = w @ product
    off = product - 1 / n
    name = entry["claim"]
    if listed is not None and any(len({w for g, _ in p for w in g}) != sum(len(g) for g, _ in p) for p in listed):
        return False
    if name == "deadlock-free":
        return True
    if name == "conflict-free":
        return listed is not None
    if name == "membership":
        is_rule = raw["strategy"]["kind"] == "allreduce" or "node_radices" in raw["strategy"]
        return is_rule and listed is not None and entry["answers"] == _answers(n, listed)
    if name in ("doubly-stochastic", "unit-sums"):
        sums = all(np.allclose(w.sum(0), 1) and np.allclose(w.sum(1), 1) for w in matrices)
        return sums and (name == "unit-sums" or min(w.min() for w in matrices) > -1e-12)
    if name == "consensus":
        center = np.eye(n) - 1 / n
        return bool(np.abs(np.linalg.eigvals(center @ product @ center)).max() < 1 - 1e-9)
    if name == "contraction":
        return float(Fraction(entry["squared"])) >= np.linalg.norm(off, 2) ** 2 - 1e-9
    if name in STEADY:
        return float(Fraction(entry["at_most"])) >= steady_figures(raw, listed, matrices)[name] * (1 - 1e-9)
    if name.startswith("exact"):
        return bool(np.abs(off).max() < 1e-9)
    if name == "rounds":
        return _rounds_true(entry, n, listed)
    return _gap_true(entry, n, matrices, period)


def _answers(n, listed):
    """The hash of what every worker answers, from the groups one by one; here they are all small enough."""
    lines = []
    for phase in listed:
        home = {
            worker: f"{min(group)} {Fraction(t).limit_denominator(10**6)}" for group, t in phase for worker in group
        }
        lines += [home.get(worker, "-") for worker in range(n)]
    return hashlib.sha256("".join(line + "\n" for line in lines).encode()).hexdigest()


def _rounds_true(entry, n, listed):
    """By exhaustion of what the bound speaks about: sizes up to g whose product is a multiple of every prime power."""
    g = max(len(group) for phase in listed for group, _ in phase)
    plain = all(t == 1 for phase in listed for _, t in phase)
    if entry["group"] != g:
        return False
    log = next(t for t in range(40) if g**t >= n)
    if entry["at_least"] == "never":
        return plain and any(n % p == 0 and all(p % q for q in range(2, p)) for p in range(g + 1, n + 1))
    best = log + (g == 2 and n % 2 == 1)
    if plain:
        smooth = all(
            any(s % p == 0 for s in range(2, g + 1))
            for p in range(2, n + 1)
            if n % p == 0 and all(p % q for q in range(2, p))
        )
        best = (
            99
            if not smooth
            else max(best, 3 if n > g and not any(n % a == 0 and n // a <= g for a in range(2, g + 1)) else 0)
        )
    return entry["at_least"] <= best


def _gap_true(entry, n, matrices, period):
    assert period == 1
    kind, w = entry["claim"].rpartition("-")[2], matrices[0]
    if kind == "hop":
        a = (np.abs(w) > 1e-12).astype(float) * (1 - np.eye(n))
        value = 1 - np.sort(np.linalg.eigvals(a / a.sum(1, keepdims=True)).real)[-2]
    elif kind == "slem":
        value = 1 - np.sort(np.abs(np.linalg.eigvals(w)))[-2]
    else:
        value = 1 - np.linalg.svd(w, compute_uv=False)[1]
    return float(Fraction(entry["at_least"])) <= value + 1e-9 and value < float(Fraction(entry["less_than"])) + 1e-9


# Corruptions: half of them blind, half well-formed and aimed at the meaning.


def leaves(value, path=()):
    """The paths to all numbers and texts of a document."""
    if isinstance(value, dict):
        return [leaf for key, item in value.items() for leaf in leaves(item, (*path, key))]
    if isinstance(value, list):
        return [leaf for i, item in enumerate(value) for leaf in leaves(item, (*path, i))]
    return [path]


def at(value, path):
    for key in path:
        value = value[key]
    return value


def blind(draw, document):
    """Change one place of a document in any way; returns whether it could."""
    path = draw.choice(leaves(document))
    where, key, old = at(document, path[:-1]), path[-1], at(document, path)
    kind = draw.randrange(6)
    if kind == 0:
        where[key] = draw.choice([-1, 2**70, True, 1.5, None, "", "1/0", "1e99999", [], {}, "x" * 50])
    elif kind == 1 and isinstance(where, list):
        where.insert(draw.randrange(len(where) + 1), copy.deepcopy(old))
    elif kind == 2:
        del where[key]
    elif kind == 3 and isinstance(where, list) and len(where) > 1:
        other = draw.randrange(len(where))
        where[key], where[other] = where[other], where[key]
    elif kind == 4 and isinstance(where, dict):
        where[str(key) + "_"] = where.pop(key)
    else:
        aimed_leaf(draw, where, key)


def aimed_leaf(draw, where, key):
    """A well-formed change of one number or text."""
    old = where[key]
    if isinstance(old, int):
        where[key] = max(0, old + draw.choice([-2, -1, 1, 2, 5]))
    elif isinstance(old, str) and old.lstrip("-").replace("/", "").isdigit():
        new = Fraction(old) + Fraction(draw.choice([-1, 1]), draw.choice([1, 2, 3, 7, 10**6, 2**50]))
        where[key] = str(new)
    else:
        where[key] = draw.choice([*checker.CLAIMS, "trees", "pivots", "never", "log", "p-adic"]).split("/")[0]


def aimed_entry(draw, entry):
    """A well-formed change of the meaning of one entry."""
    if "trees" in entry and any(entry["trees"]):
        tree = draw.choice([tree for tree in entry["trees"] if tree])
        edge = draw.randrange(len(tree))
        tree[edge] = draw.choice(
            [tree[draw.randrange(len(tree))], [draw.randrange(3), *sorted(draw.sample(range(6), 2))]]
        )
        return
    if "squared" in entry and draw.random() < 0.5:
        entry["squared"] = str(Fraction(entry["squared"]) * Fraction(draw.randrange(999_999), 10**6))
        return
    if "at_most" in entry and draw.random() < 0.5:
        part = Fraction(draw.randrange(10**6 - 9, 10**6 + 9) if draw.random() < 0.5 else draw.randrange(10**6), 10**6)
        entry["at_most"] = str(Fraction(entry["at_most"]) * part)
        return
    if "at_least" in entry and draw.random() < 0.5:
        old = entry["at_least"]
        entry["at_least"] = (
            draw.randrange(12)
            if isinstance(old, int)
            else "1"
            if old == "never"
            else str(Fraction(old) + Fraction(1, 10 ** draw.randrange(9)))
        )
        return
    paths = [path for path in leaves(entry) if path[0] not in ("claim", "method")]
    if not paths:
        entry["classes"].append([draw.randrange(3)])
        return
    path = draw.choice(paths)
    where = at(entry, path[:-1])
    if isinstance(where, list) and len(where) > 1 and draw.random() < 0.4:
        draw.shuffle(where)
    else:
        aimed_leaf(draw, where, path[-1])


def aimed_schedule(draw, raw):
    """A well-formed change of one phase of a schedule."""
    strategy = raw["strategy"]
    if strategy["kind"] == "allreduce":
        raw["strategy"] = draw.choice(
            [
                {"kind": "allreduce", "pace": draw.randrange(1, 9)},
                {
                    "kind": "static",
                    "phases": [
                        [{"group": draw.sample(range(5), draw.randrange(2, 6))}] for _ in range(draw.randrange(1, 3))
                    ],
                },
            ]
        )
        return
    items = strategy.get("phases") or strategy["rounds"]
    phase = draw.choice(items)
    kind = draw.randrange(4)
    if kind == 0 and len(items) > 1:
        items.remove(phase)
    elif kind == 1 and isinstance(phase, list) and phase:
        draw.choice(phase)["relax"] = draw.choice([0, 2, 3, -1, "1/2", "5/4", "4000001/1000000", 1])
    elif kind == 2 and isinstance(phase, list) and len(phase):
        phase.remove(draw.choice(phase))
    elif isinstance(phase, dict):
        edge = draw.choice(phase["edges"]) if phase["edges"] else [0, 1]
        if draw.random() < 0.5:
            edge[draw.randrange(2)] = draw.randrange(5)
        else:
            phase["weights"] = draw.choice(["1/2", "1/4", 1, 0, "-1/5", "2/5"])
    elif phase:
        item = draw.choice(phase)
        key = draw.choice([key for key in ("group", "local", "across") if key in item])
        bound = 16 if key == "group" else 4 if key == "local" else 2
        listed = item[key]
        if listed and draw.random() < 0.5:
            listed[draw.randrange(len(listed))] = draw.randrange(bound)
        else:
            listed.append(draw.randrange(bound))


CASES = [
    (name, claim)
    for name, schedule in SCHEDULES.items()
    for claim in (c.claim for c in prove(schedule).claims if c.entry)
]
KINDS = sorted(
    {
        "/".join(filter(None, (c.claim, c.entry.get("method"))))
        for s in SCHEDULES.values()
        for c in prove(s).claims
        if c.entry
    }
)


def entries_of(kind):
    """(raw schedule, certificate with only what the claim rests on and the claim) for all schedules that have it."""
    found = []
    for schedule in [
        *SCHEDULES.values(),
        *((wide(),) if "norms" in kind else ()),
        *((spread(),) if "factor" in kind else ()),
        *((modular(),) if "probable" in kind else ()),
    ]:
        raw, certificate = certified(schedule)
        for entry in certificate["claims"]:
            if "/".join(filter(None, (entry["claim"], entry.get("method")))) == kind:
                first = [] if entry is certificate["claims"][0] else certificate["claims"][:1]
                found.append((raw, {**certificate, "claims": [*first, entry]}))
    return found


@pytest.mark.parametrize(
    "kind", sorted({*KINDS, "contraction/factor", "contraction/norms", "exact-consensus-probable"})
)
def test_corrupted_certificates_are_refused_or_still_true(kind):
    slow = ("contraction/factor", "contraction/norms", *STEADY)  # the matrices of the first two have 50 rows
    count = COUNT // 4 if kind in slow else COUNT
    draw = random.Random(f"certificate {kind}")
    cases = entries_of(kind)
    assert cases, "every kind of claim has a schedule that shows it"
    accepted = changed = named = 0
    for number in range(10 * COUNT):
        if changed == count:
            break
        raw, certificate = (copy.deepcopy(part) for part in cases[number % len(cases)])
        index = len(certificate["claims"]) - 1
        before = copy.deepcopy(certificate)
        if number % 2:
            aimed_entry(draw, certificate["claims"][index])
        else:
            blind(draw, certificate["claims"][index])
        if certificate == before and repr(certificate) == repr(before):
            continue
        changed += 1
        said = refusal(copy.deepcopy(raw), copy.deepcopy(certificate))
        if said is None:
            accepted += 1
            assert is_true(certificate["claims"][index], raw), certificate["claims"][index]
        else:
            named += f"claims[{index}]" in said or "schedule" in said
    assert changed == count
    assert named >= 0.97 * (changed - accepted), "a refusal names the entry"


@pytest.mark.parametrize("name", SCHEDULES)
def test_certificates_of_another_schedule_are_refused_or_still_true(name):
    draw = random.Random(f"schedule {name}")
    raw, certificate = certified(SCHEDULES[name])
    changed = accepted = 0
    for number in range(10 * COUNT):
        if changed == COUNT:
            break
        other = copy.deepcopy(raw)
        try:
            aimed_schedule(draw, other) if number % 2 else blind(draw, other["strategy"])
            reread = checker.read_schedule(copy.deepcopy(other))
        except (checker.Refusal, TypeError, ValueError, AttributeError, KeyError):
            continue  # not a schedule at all: the loader's business
        if other == raw:
            continue
        changed += 1
        forged = {
            **copy.deepcopy(certificate),
            "schedule_sha256": reread.sha256,
            "num_workers": reread.num_workers,
            "period": reread.period,
        }
        # Each claim on its own, so that one refusal does not shield the others.
        for index, entry in enumerate(forged["claims"]):
            if entry["claim"] in STEADY and changed % 10:
                continue
            single = {**forged, "claims": forged["claims"][:1] if index == 0 else [forged["claims"][0], entry]}
            if refusal(copy.deepcopy(other), copy.deepcopy(single)) is None:
                accepted += 1
                assert is_true(entry, other), (entry["claim"], other)
    assert changed == COUNT


@pytest.mark.parametrize("name", SCHEDULES)
def test_true_certificates_are_accepted(name):
    raw, certificate = certified(SCHEDULES[name])
    assert refusal(copy.deepcopy(raw), certificate) is None
    assert all(is_true(entry, raw) for entry in certificate["claims"])


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_checker_computes_the_hash_that_the_documents_compute(name):
    schedule = SCHEDULES[name]
    assert checker.read_schedule(dump_schedule(schedule)).sha256 == schedule_sha256(schedule)


AXES = [
    *(
        {"when": when}
        for when in ("lockstep", {"late": 1}, {"late": 2}, {"late": 0}, {"late": "1"}, {}, "free", None, 1)
    ),
    *({"when": when} for when in ({"gap": {"staleness": 1}}, {"late": 1, "gap": 1}, "late")),
    *({"how": how} for how in ({}, {"form": "ring"}, {"form": "hierarchical"}, {"form": "tree"}, "ring", None)),
    *({"how": how} for how in ({"form": "ring", "codec": "none"}, {"codec": "none"})),
    {"when": {"late": 1}, "how": {"form": "hierarchical"}},
    {"when": "lockstep", "how": {}},
    {"overlap": True},
]


@pytest.mark.parametrize("axes", AXES, ids=str)
@pytest.mark.parametrize("name", ["rule", "explicit", "allreduce", "graph"])
def test_of_when_and_how_the_checker_reads_and_refuses_what_the_documents_do(name, axes, tmp_path):
    """The same canonical hash, or no schedule for either."""
    raw = dump_schedule(SCHEDULES[name])
    raw["strategy"] |= axes
    (tmp_path / "s.json").write_text(json.dumps(raw))
    try:
        read = schedule_sha256(load_schedule(tmp_path / "s.json"))
    except InputError:
        read = None
    try:
        checked = checker.read_schedule(raw).sha256
    except checker.Refusal:
        checked = None
    assert checked == read
