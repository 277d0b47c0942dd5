"""Rounds to exact consensus: relaxed pairs for n ≤ 64, plain means for groups ≤ 8; writes docs/exact-rounds.md.

python -m benchmarks.exact_rounds [--output docs/exact-rounds.md]
python -m benchmarks.exact_rounds --prove N:T ...   (CP-SAT enumerates, Gröbner bases exclude; N = 7, T = 4)
"""

from __future__ import annotations

import argparse
import time
from fractions import Fraction
from pathlib import Path

from benchmarks.matchings.enumeration import all_matchings
from benchmarks.matchings.means import fewest_means
from benchmarks.matchings.weights import has_weights
from partreduce.schedulers.exact_rounds.fewest import fewest_rounds
from partreduce.schedulers.exact_rounds.pair_constructions import split_rounds
from partreduce.schedulers.synthesis.problem import Status
from partreduce.topo.arithmetic.whole_numbers import valuation
from partreduce.topo.mixing import exact_product

INTRODUCTION = """# Exact consensus in the fewest rounds

This page is written by `python -m benchmarks.exact_rounds`; every schedule behind it has been multiplied out
in exact fractions while it was written.

## One partner per round, relaxed pairs

A pair of weight a moves both workers by a towards each other (`relax` 2a); all weights lie strictly between 0 and 1.
"Base-2" is the length of the published Base-(k+1) graph at k = 1 (Takezawa et al., 2023). "bound" is the proved lower
bound: the logarithm; for odd n one more, because somebody idles in every round ("gossip parity"); one more just below
powers of two, where the paths leave no freedom ("full tree"; proofs in [exact-bounds.md](theory/exact-bounds.md)).
**Bold** rows are optimal: their length meets the bound. A dash under "saved" means as long as Base-2.

Made by: *slide*: two rows of n/2 workers slide along each other, weights and shifts from Euclid's algorithm
(`schedulers/exact_rounds/euclid_slides.py`); *product a x b*: one after the other on rows and columns, rounds add up;
*a glued to b*: n = a·b/2, one round less than the sum, because the schedule for a also does the first round of b's;
*binary split*: as Base-2; *found by search*: the table of `schedulers/exact_rounds/known_rounds.py`.

{summary}

| n | rounds | Base-2 | saved | bound | argument | made by |
|---|---|---|---|---|---|---|
"""

MEANS = """
## Plain means of groups of at most g

A number of workers is reachable exactly iff all its primes are at most g. Entries: least number of rounds, proved
optimal by the named bounds (log, two-round, p-adic, several primes) unless marked `?`; `-`: impossible (prime bound).
For 2 ≤ n ≤ 512 and 2 ≤ g ≤ 8, {optimal} pairs (n, g) are proved optimal, {open} are open ({listed}), {impossible} are
impossible.

| n | g = 2 | 3 | 4 | 5 | 6 | 7 | 8 |
|---|---|---|---|---|---|---|---|
"""


def base_2_length(num_workers: int) -> int:
    """Rounds of the published Base-2 graph: the split of n, or of its odd part times pairs if shorter."""
    twos = valuation(num_workers, 2)
    odd = num_workers >> twos
    return min(len(split_rounds(num_workers)), twos + (len(split_rounds(odd)) if odd > 1 else 0))


def pair_section() -> str:
    rows, optimal, shorter = [], 0, 0
    for n in range(2, 65):
        answer = fewest_rounds(n)
        assert answer.phases is not None
        assert exact_product(answer.phases).is_everywhere(Fraction(1, n))
        base, length = base_2_length(n), len(answer.phases)
        optimal, shorter = optimal + (answer.status is Status.OPTIMAL), shorter + (length < base)
        cells = [str(n), str(length), str(base), str(base - length) if length < base else "-"]
        cells += [str(answer.bound.rounds), answer.bound.name, answer.how]
        if answer.status is Status.OPTIMAL:
            cells[:2] = [f"**{cell}**" for cell in cells[:2]]
        rows.append("| " + " | ".join(cells) + " |")
    summary = (
        f"Of these {len(rows)} numbers of workers {optimal} are proved optimal and {shorter} are shorter than Base-2."
    )
    return INTRODUCTION.format(summary=summary) + "\n".join(rows) + "\n"


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


def prove(item: str) -> None:
    """Whether any matchings have weights that make them exact: all of them, up to renumbering and time reversal."""
    n, rounds = (int(part) for part in item.split(":"))
    start = time.monotonic()
    answer = all_matchings(n, rounds, time_limit=600)
    print(
        f"n = {n}, {rounds} rounds: matchings {answer.status}, {len(answer.sequences)} up to symmetry of "
        f"{answer.num_solutions}, {answer.seconds:.1f} s",
        flush=True,
    )
    if answer.status is Status.OPTIMAL:
        possible = sum(has_weights(sequence) for sequence in answer.sequences)
        print(f"    {possible} have (complex) weights; {time.monotonic() - start:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("docs/exact-rounds.md"))
    parser.add_argument("--prove", nargs="*", default=[], metavar="N:T")
    options = parser.parse_args()
    for item in options.prove:
        prove(item)
    if options.prove:
        return
    options.output.write_text(pair_section() + mean_section(), encoding="utf-8")
    print(f"wrote {options.output}")


if __name__ == "__main__":
    main()
