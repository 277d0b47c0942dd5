# ruff: noqa: ANN401 - parsed JSON is Any until it is checked
"""The checker's rarer claims: weighted graphs, exact means by labels, spectral gaps, rounds, modular equality."""

import random
import sys
from fractions import Fraction
from math import isqrt, lcm, prod
from operator import mul
from typing import Any

documents: Any = sys.modules["checker_documents"]  # loaded by checker.py, the program
exact, hold, match, need = documents.exact, documents.hold, documents.match, documents.need
same, pivots, list_of_strings = documents.same, documents.pivots, [str]
ONE, MAX_GAP, MAX_MODULAR = Fraction(1), 64, 5 * 10**7
Entry = dict[str, Any]


def graph(check: Any, entry: Entry, place: str) -> None:
    """No negative weight, a positive one on oneself, and a root that reaches everyone."""
    hold(check.is_graph, place, "graph", "trees")
    edges, fits = [{(s, t) for t, s, w in phase if w > 0} for phase in check.phases], True
    for phase in check.phases:
        own: dict[int, Fraction] = {}  # only of targets: n may be far larger than the file
        for target, _, weight in phase:
            own[target] = own.get(target, ONE) - weight
        fits = fits and min(own.values(), default=1) > 0 and all(w >= 0 for _, _, w in phase)
    hold(fits, "schedule", "a weight", "positive weights on oneself, and none negative")
    reached = {match(entry["root"], (0, check.s.n), f"{place}.root")}
    hold(type(entry["tree"]) is list and len(entry["tree"]) == check.s.n - 1, place, "tree", "n - 1 edges")
    for e, edge in enumerate(entry["tree"]):
        t, u, v = match(edge, [(0, check.s.n + len(edges))], f"{place}.tree[{e}]") if len(edge) == 3 else (-1, -1, -1)
        good = -1 < t < len(edges) and (u, v) in edges[t] and u in reached and v not in reached
        hold(good, f"{place}.tree[{e}]", edge, "an edge of positive weight from a reached worker to a new one")
        reached.add(v)


def labels(check: Any, entry: Entry, place: str) -> None:
    """Phase first + l averages exactly the workers whose labels agree in all digits but l."""
    radices, labels = entry["radices"], match(entry["labels"], [(0, check.s.n)], f"{place}.labels")
    match(radices, [(2, check.s.n + 1)], f"{place}.radices")
    first = match(entry["first"], (0, len(check.phases)), f"{place}.first")
    hold(check.s.form == "groups" and len(radices) < 32 and prod(radices) == check.s.n, place, radices, "product n")
    hold(first + len(radices) <= len(check.phases), f"{place}.first", first, "a window inside the period")
    hold(len(labels) == len(set(labels)) == check.s.n, f"{place}.labels", "…", "a different label for every worker")
    for digit, radix in enumerate(radices):
        stride, phase = prod(radices[digit + 1 :]), check.phases[first + digit]
        at = f"{place}.labels and phase {first + digit}"
        hold(len(phase) * radix == check.s.n, at, len(phase), f"{check.s.n // radix} groups")
        for members, _, relax in phase:
            held = sorted(map(labels.__getitem__, members))
            fits = held == [*range(held[0], held[0] + radix * stride, stride)] and relax == 1
            hold(fits and held[0] // stride % radix == 0, at, members, f"labels that differ in digit {digit} alone")


def rounds(check: Any, entry: Entry, place: str) -> None:
    """The named bound, recomputed for n and the largest group; see docs/certificates.md for the five theorems."""
    hold(not check.is_graph, place, "rounds", "a schedule of groups")
    n, used = check.s.n, set().union(*check.sizes())
    g, plain, p, bound = max(size for size, _ in used), all(r == 1 for _, r in used), entry["prime"], entry["bound"]
    log, powers, rest = next(t for t in range(32) if g**t >= n), 0, n
    is_prime = type(p) is int and 1 < p <= n and all(p % q for q in range(2, isqrt(p) + 1))
    while is_prime and rest % p == 0:
        rest, powers = rest // p, powers + 1
    best = [g // p**a * p**a for a in range(32) if p**a <= g] if powers else []
    reach, steps = [1] + [0] * powers, 0
    while len(best) > 1 and reach[powers] < n:
        reach = [max(reach[max(v - a, 0)] * size for a, size in enumerate(best)) for v in range(powers + 1)]
        steps += 1
    split = n <= g or any(n % a == 0 for a in range(-(-n // g), isqrt(n) + 1))
    known: dict[str, tuple[Any, Any]] = {"log": (log, 0)} | (
        {"gossip-parity": (log + 1, 0)} if g == 2 and n % 2 else {}
    )
    known |= {"two-round": (3, 0)} if plain and not split else {}
    known |= {"p-adic": (steps, p), "prime-factor": ("never", p)} if plain and powers else {}
    known.pop("prime-factor" if len(best) > 1 else "p-adic", None)
    hold(type(bound) is str and bound in known, f"{place}.bound", bound, f"one of {sorted(known)}")
    expected = dict(zip(("at_least", "prime"), known[bound], strict=True)) | {"group": g}
    same(f"{place}.group", entry["group"], g)
    for key in ("prime", "at_least"):
        same(f"{place}.{key}", entry[key], expected[key])


def gap(check: Any, entry: Entry, place: str) -> None:
    """At most one eigenvalue of S x = r M x lies beyond 1 - at_least, and two or more beyond 1 - less_than."""
    kind, n = entry["claim"].rpartition("-")[2], check.s.n
    hold(
        check.is_graph and len(check.phases) == 1 and n <= MAX_GAP, place, kind, f"a graph of one round, n <= {MAX_GAP}"
    )
    need(n**3 * lcm(*(w.denominator for _, _, w in check.phases[0])).bit_length() <= 2**30, place, "too large a gap")
    match(entry["measure"], list_of_strings, f"{place}.measure")
    rows = [[Fraction(int(i == j)) for j in range(n)] for i in range(n)]
    for target, source, weight in check.phases[0]:
        rows[target][source] += weight
        rows[target][target] -= weight
    measure = [exact(m, f"{place}.measure[{i}]") for i, m in enumerate(entry["measure"])]
    hold(len(measure) == n and min(measure) > 0, f"{place}.measure", "…", "a positive number for each worker")
    if kind == "hop":
        rows = [[Fraction(int(i != j and x != 0)) for j, x in enumerate(row)] for i, row in enumerate(rows)]
        same(f"{place}.measure", entry["measure"], [str(sum(row)) for row in rows])
    elif kind == "sigma":
        rows = [[Fraction(sum(map(mul, a, b))) for b in zip(*rows, strict=True)] for a in zip(*rows, strict=True)]
        same(f"{place}.measure", entry["measure"], ["1"] * n)
    else:
        rows = [[m * x for x in row] for m, row in zip(measure, rows, strict=True)]
    hold(rows == [*map(list, zip(*rows, strict=True))], f"{place}.measure", "…", "a reversible or undirected graph")
    for key, low, high in (("at_least", 0, 1), ("less_than", 2, n)):
        r, count = 1 - exact(entry[key], f"{place}.{key}"), n
        if kind == "hop" or r >= 0:
            shift = r * r if kind == "sigma" else r
            signs = (1, -1) if kind == "slem" else (1,)
            matrices = [
                [[shift * measure[i] * (i == j) - sign * x for j, x in enumerate(row)] for i, row in enumerate(rows)]
                for sign in signs
            ]
            count = sum(pivot < 0 for matrix in matrices for pivot in pivots(matrix, f"{place}.{key}", check.work))
        hold(low <= count <= high, f"{place}.{key}", entry[key], f"{low} to {high} eigenvalues beyond, not {count}")


def prime(draw: random.Random) -> int:
    """The first probable prime of 127 bits that `draw` gives (Miller-Rabin, 24 drawn bases)."""
    while True:
        p = draw.getrandbits(127) | 1 << 126 | 1
        twos = (p - 1 & 1 - p).bit_length() - 1
        for base in (draw.randrange(2, p - 1) for _ in range(24)):
            x = pow(base, p >> twos, p)
            if x != 1 and all(pow(x, 1 << j, p) != p - 1 for j in range(twos)):
                break
        else:
            return p


def probable(check: Any, entry: Entry, place: str) -> None:
    """Equality on a vector modulo a prime, both drawn from the schedule's own hash.

    The prime is drawn too, since an author who knew it could choose factors whose error is a multiple of it.
    """
    hold(check.s.form == "groups", place, "a modular test", "explicit groups")
    parts = {abs(part) for phase in check.phases for _, _, r in phase for part in r.as_integer_ratio()}
    hold(max(parts, default=1) <= 10**6, place, max(parts, default=1), "relax factors of at most 6 digits")
    need(check.s.n * len(check.phases) <= MAX_MODULAR, place, f"over {MAX_MODULAR} workers times phases")
    same(f"{place}.trials", entry["trials"], 2)
    for trial in range(2):
        draw, n = random.Random(f"{check.s.sha256}/{trial}"), check.s.n
        p = prime(draw)
        x = [draw.randrange(p) for _ in range(n)]
        mean = sum(x) * pow(n, -1, p) % p
        for members, relax in ((m, r) for phase in check.phases for m, _, r in phase):
            factor = relax.numerator * pow(relax.denominator, -1, p)
            pull = factor * sum(map(x.__getitem__, members)) * pow(len(members), -1, p)
            for w in members:
                x[w] = ((1 - factor) * x[w] + pull) % p
        hold({*x} == {mean}, place, "the product", "the mean, modulo a drawn prime")
