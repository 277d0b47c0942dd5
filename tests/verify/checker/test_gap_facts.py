"""How far workers that keep a gap can be apart: the checker's search, the prover's, and every interleaving agree."""

import json
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import pytest

from benchmarks.explore.hop import diamond, ring
from helpers.gap_bounds import attained, named
from partreduce import Cluster, Schedule
from partreduce.files import dump_schedule
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.strategies import IterationGap, NeighborAveraging, Round, SkipPolicy
from partreduce.verify import checker, prove
from partreduce.verify.checker.events import EventGraph
from partreduce.verify.checker.refusal import TooLarge, Work
from partreduce.verify.gap_bounds import exact_bounds

CHECKER = Path(checker.__file__).parent

SETTINGS = {
    "standard": IterationGap(),
    "staleness": IterationGap(staleness=2),
    "tokens": IterationGap(max_ig=3),
    "one token": IterationGap(max_ig=1),
    "staleness and tokens": IterationGap(staleness=1, max_ig=2),
    "NOTIFY-ACK": IterationGap(notify_ack=True),
    "NOTIFY-ACK and tokens": IterationGap(notify_ack=True, max_ig=2),
    "backup": IterationGap(backup=1),
    "backup and tokens": IterationGap(backup=1, max_ig=2),
    "hybrid": IterationGap(backup=1, staleness=1),
    "hybrid and tokens": IterationGap(backup=1, staleness=1, max_ig=3),
    "skips of a hybrid": IterationGap(backup=1, staleness=1, max_ig=3, skip=SkipPolicy(limit=4)),
    "long skips": IterationGap(staleness=3, max_ig=4, skip=SkipPolicy(limit=9, trigger=3)),
    "skips from 4 behind": IterationGap(staleness=3, max_ig=4, skip=SkipPolicy(limit=2, behind=4)),
    "skips from further behind than anybody gets": IterationGap(
        staleness=1, max_ig=2, skip=SkipPolicy(limit=2, behind=9)
    ),
}
GRAPHS = {
    "ring": named("ring", 6),
    "directed ring": ring(5),
    "complete": named("complete", 4),
    "star": named("star", 5),
    "double ring": named("double-ring", 8),
    "diamond": diamond(),
    "a way without return": Digraph.of(4, [(0, 1), (1, 2), (2, 0), (2, 3)]),
    "no cycle": Digraph.of(4, [(0, 1), (0, 2), (1, 3), (2, 3)]),
    "nobody talks": Digraph.of(2, []),
    "alone": Digraph.of(1, []),
}


def fitting(graph, setting):
    """The setting, with no more backup workers than a worker has in-neighbors."""
    backup = tuple(
        min(len(sources), spare)
        for sources, spare in zip(graph.sources, setting.backups(graph.num_workers), strict=True)
    )
    return replace(setting, backup=backup)


def events_of(graph, setting):
    backups = setting.backups(graph.num_workers)
    return EventGraph(graph.edges, backups, staleness=setting.staleness, max_ig=setting.max_ig,
                      notify_ack=setting.notify_ack)  # fmt: skip


def bounds_of(graph, setting, ends):
    """Entry [i][j] as the checker finds it, None without a limit; of each worker j only the `ends` are asked for."""
    events, n = events_of(graph, setting), graph.num_workers
    columns = [events.leads(j, ends(j), Work("here")) for j in range(n)]
    return tuple(tuple(columns[j].get(i) for j in range(n)) for i in range(n))


@pytest.mark.parametrize("name", SETTINGS)
def test_the_checker_finds_the_bounds_of_the_prover(name):
    for graph in GRAPHS.values():
        setting = fitting(graph, SETTINGS[name])
        exact = exact_bounds(graph, setting)
        assert bounds_of(graph, setting, lambda _, graph=graph: range(graph.num_workers)) == exact
        near = bounds_of(graph, setting, lambda j, graph=graph: {*graph.sources[j], *graph.targets[j]})
        for i, j in graph.edges:
            assert (near[i][j], near[j][i]) == (exact[i][j], exact[j][i]), "whatever else is asked for"


def test_the_bounds_are_what_exploration_attains():
    """Every interleaving of Hop's worker."""
    rng = random.Random("attained")
    for _ in range(40):
        graph = random_digraph(rng, rng.randrange(2, 5))
        setting = fitting(graph, SETTINGS[rng.choice(list(SETTINGS))])
        bounds = bounds_of(graph, setting, lambda _, graph=graph: range(graph.num_workers))
        assert bounds == attained(graph, setting, bounds)[0]


def random_digraph(rng, n):
    edges = {(v, (v + 1) % n) for v in range(n)} if rng.random() < 0.8 else set()
    edges |= {(rng.randrange(n), rng.randrange(n)) for _ in range(rng.randrange(2 * n + 1))}
    return Digraph.of(n, edges)


def test_a_search_that_costs_too_much_is_given_up():
    events = events_of(named("ring", 6), IterationGap())
    with pytest.raises(TooLarge, match="here: too large"):
        events.leads(0, range(6), Work("here", 100))


@pytest.mark.parametrize("name", ["checker", "a copy of version-1.0", "json"])
def test_the_program_is_one_folder_that_runs_under_any_name_with_nothing_but_python(tmp_path, name):
    """Also beside files, and with files in it, that are called like modules of the standard library."""
    shutil.copytree(CHECKER, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for stranger in ("fractions.py", "random.py", "refusal.py", f"{name}/hashlib.py"):
        (tmp_path / stranger).write_text("raise ImportError('a stranger was imported')")
    ring = [(v, (v + d) % 6, Fraction(1, 3)) for v in range(6) for d in (1, 5)]
    schedule = Schedule(
        "r", Cluster.regular(6, 1), NeighborAveraging(rounds=(Round.from_edges(6, ring),), sync=IterationGap(max_ig=2))
    )
    (tmp_path / "s.json").write_text(json.dumps(dump_schedule(schedule)))
    (tmp_path / "c.json").write_text(json.dumps(dict(prove(schedule).certificate)))
    line = [sys.executable, "-I", "-S", str(tmp_path / name), "c.json", "s.json"]
    result = subprocess.run(line, env={}, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    lines = result.stdout.splitlines()
    assert "consensus: proved" in lines
    assert "gap-of-pairs: follows from the protocol's rules: from 0, to 3, bound 3" in lines


def test_the_program_runs_as_a_module_of_the_package_without_a_warning():
    line = [sys.executable, "-W", "error", "-m", "partreduce.verify.checker", "only one file"]
    result = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stderr) == (65, "")
    assert result.stdout.startswith("unreadable: usage: ")


def test_importing_the_bounds_does_not_load_the_model_checker():
    """A run asks for queue capacities, and the public names for nothing more."""
    code = "import sys; import partreduce.verify.gap_bounds, partreduce.verify.gap_bounds, partreduce.verify.prove;"
    code += "print(sorted(name for name in sys.modules if 'explore' in name or '.search' in name))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert result.stdout.strip() == "[]"
