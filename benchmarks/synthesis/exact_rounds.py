"""Rounds to exact consensus: relaxed pairs for n ≤ 64, plain means for groups ≤ 8; writes docs/exact-rounds.md.

python benchmarks/synthesis/exact_rounds.py [--output docs/exact-rounds.md] [--search N:T:SECONDS:SEED ...]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from schedulers.synthesis.exact_constructions import base_2_length
from schedulers.synthesis.exact_pairs import search_pairs
from schedulers.synthesis.exact_rounds import fewest_means, fewest_rounds, product_is_mean
from schedulers.synthesis.problem import Status

INTRODUCTION = """# Exact consensus in the fewest rounds

This page is written by `python benchmarks/synthesis/exact_rounds.py`; every schedule behind it has been multiplied out
in exact fractions while it was written.

## One partner per round, relaxed pairs

A pair of weight a moves both workers by a towards each other (`relax` 2a); all weights lie strictly between 0 and 1.
"Base-2" is the length of the published Base-(k+1) graph at k = 1 (Takezawa et al., 2023). "bound" is the proved lower
bound: the logarithm, or for odd n one more, because somebody idles in every round ("gossip parity"). **Bold** rows are
optimal: their length meets the bound. A dash under "saved" means as long as Base-2.

| n | rounds | Base-2 | saved | bound | argument | made by |
|---|---|---|---|---|---|---|
"""

MEANS = """
## Plain means of groups of at most g

A number of workers is reachable exactly iff all its primes are at most g. Entries: least number of rounds, proved
optimal by the named bounds (log, two-round, p-adic) unless marked `?`; `-`: impossible (prime bound). For 2 ≤ n ≤ 512
and 2 ≤ g ≤ 8, {optimal} pairs (n, g) are proved optimal, {open} are open ({listed}), {impossible} are impossible.

| n | g = 2 | 3 | 4 | 5 | 6 | 7 | 8 |
|---|---|---|---|---|---|---|---|
"""


def pair_rows() -> list[str]:
    rows = []
    for n in range(2, 65):
        answer = fewest_rounds(n)
        assert answer.phases is not None
        assert product_is_mean(n, answer.phases)
        base, length = base_2_length(n), len(answer.phases)
        cells = [str(n), str(length), str(base), str(base - length) if length < base else "-"]
        cells += [str(answer.bound.rounds), answer.bound.name, answer.how]
        if answer.status is Status.OPTIMAL:
            cells[:2] = [f"**{cell}**" for cell in cells[:2]]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def mean_section() -> str:
    counts = dict.fromkeys(Status, 0)
    unsettled = []
    for n in range(2, 513):
        for g in range(2, 9):
            answer = fewest_means(n, g)
            counts[answer.status] += 1
            if answer.status is Status.FEASIBLE:
                unsettled.append(f"({n}, {g})")
    rows = []
    for n in range(2, 65):
        cells = []
        for g in range(2, 9):
            answer = fewest_means(n, g)
            mark = "?" if answer.status is Status.FEASIBLE else ""
            cells.append("-" if answer.phases is None else f"{len(answer.phases)}{mark}")
        rows.append(f"| {n} | " + " | ".join(cells) + " |")
    head = MEANS.format(
        optimal=counts[Status.OPTIMAL],
        open=counts[Status.FEASIBLE],
        listed=", ".join(unsettled),
        impossible=counts[Status.INFEASIBLE],
    )
    return head + "\n".join(rows) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/exact-rounds.md"))
    parser.add_argument("--search", nargs="*", default=[], metavar="N:T:SECONDS:SEED")
    options = parser.parse_args()
    for item in options.search:
        n, rounds, seconds, seed = (int(part) for part in item.split(":"))
        report = search_pairs(n, rounds, time_limit=seconds, seed=seed)
        outcome = "found" if report.rounds is not None else "none found (no proof)"
        print(
            f"n = {n}, {rounds} rounds, seed {seed}: {outcome}; {report.tried} drawn, {report.reachable} reach all, "
            f"{report.seconds:.1f} s",
            flush=True,
        )
        for pairs in report.rounds or ():
            print("   ", " ".join(f"{i}-{j}:{w}" for i, j, w in pairs))
    if options.search:
        return
    options.output.write_text(INTRODUCTION + "\n".join(pair_rows()) + "\n" + mean_section(), encoding="utf-8")
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
