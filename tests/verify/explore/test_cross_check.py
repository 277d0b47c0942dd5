"""Hop's token queues, searched by others: a Promela model run by Spin, and a second search that knows no queues."""

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.explore.explorer import explore
from benchmarks.explore.reductions import Hop
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.strategies import IterationGap

MODEL = Path(__file__).parents[3] / "benchmarks" / "explore" / "models" / "hop_tokens.pml"
CONFIGURATIONS = [  # workers, offsets of the targets, max_ig
    (2, (1,), 1), (2, (1,), 2), (2, (1,), 3), (2, (1,), 4), (3, (1,), 1), (3, (1,), 2), (3, (2,), 1), (3, (1,), 3),
    (4, (1,), 1), (4, (3,), 1), (3, (1, 2), 1),
]  # fmt: skip
LARGER = [(3, (1, 2), 2), (4, (1, 3), 1)]


def explored(n, offsets, max_ig):
    graph = Digraph.of(n, [(v, (v + offset) % n) for v in range(n) for offset in offsets])
    found = explore(Hop(graph, IterationGap(max_ig=max_ig)), symmetry=False)
    assert found.holds
    return found.states


def second_search(n, offsets, max_ig):
    """Count reachable states from the paper alone: steps, and how many updates and tokens each line has delivered.

    A worker puts an update on its lines when it enters a step, then tokens, so what is still on a line follows from the
    sender's step and the two counts, and whether a token is next from which of the two is further behind.
    """
    edges = {(u, (u + offset) % n) for u in range(n) for offset in offsets}
    lines = sorted(edges | {(v, u) for u, v in edges})

    def normal(steps, updates, tokens):
        low = min(steps)
        return (
            tuple(s - low for s in steps),
            tuple(k - low if line in edges else 0 for k, line in zip(updates, lines, strict=True)),
            tuple(k - low if line[::-1] in edges else 0 for k, line in zip(tokens, lines, strict=True)),
        )

    def following(steps, updates, tokens):
        for place, line in enumerate(lines):
            waiting_updates = steps[line[0]] + 1 - updates[place] if line in edges else 0
            waiting_tokens = steps[line[0]] - tokens[place] if line[::-1] in edges else 0
            if waiting_tokens > waiting_updates:
                yield steps, updates, plus_one(tokens, place)
            elif waiting_updates:
                yield steps, plus_one(updates, place), tokens
        for w in range(n):
            served = all(updates[lines.index((u, w))] > steps[w] for u in range(n) if (u, w) in edges)
            paid = all(max_ig + tokens[lines.index((v, w))] > steps[w] for v in range(n) if (w, v) in edges)
            if served and paid:
                yield plus_one(steps, w), updates, tokens

    start = ((0,) * n, (0,) * len(lines), (0,) * len(lines))
    seen, frontier = {start}, [start]
    while frontier:
        for state in (normal(*after) for after in following(*frontier.pop())):
            if state not in seen:
                seen.add(state)
                frontier.append(state)
    return len(seen)


def plus_one(values, place):
    return (*values[:place], values[place] + 1, *values[place + 1 :])


@pytest.mark.parametrize(("n", "offsets", "max_ig"), CONFIGURATIONS)
def test_second_search_counts_the_same_states(n, offsets, max_ig):
    assert second_search(n, offsets, max_ig) == explored(n, offsets, max_ig)


@pytest.mark.skipif(
    shutil.which("spin") is None or shutil.which("gcc") is None,
    reason="Spin (Debian package spin) and gcc run the Promela model; one of them is not installed",
)
@pytest.mark.parametrize(("n", "offsets", "max_ig"), CONFIGURATIONS + LARGER)
def test_spin_counts_the_same_states(n, offsets, max_ig, tmp_path):
    sizes = [f"-DN={n}", f"-DDEG={len(offsets)}", f"-DO1={offsets[0]}", f"-DO2={offsets[-1]}", f"-DMAXIG={max_ig}"]
    subprocess.run(["spin", "-a", *sizes, str(MODEL)], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    build = ["gcc", "-O0", "-w", "-DNOREDUCE", "-DSAFETY", "-DNOFAIR", "-o", "pan", "pan.c"]
    subprocess.run(build, cwd=tmp_path, check=True, capture_output=True, timeout=60)
    run = subprocess.run(
        ["./pan", "-m1000000", "-w20"], cwd=tmp_path, check=True, capture_output=True, text=True, timeout=60
    )
    assert "errors: 0" in run.stdout, run.stdout
    stored = int(re.search(r"(\d+) states, stored", run.stdout)[1])
    assert stored - 1 == explored(n, offsets, max_ig)  # the state before `setup` is Spin's alone
