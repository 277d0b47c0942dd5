"""Certificates of iteration gaps: true ones are confirmed, and no corrupted one gets a false claim accepted."""

from __future__ import annotations

import copy
import itertools
import json
import random
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.command_runs import runner
from helpers.warm_checker import run_checker
from partreduce.commands.verify import command
from partreduce.graph_input import load_graph
from partreduce.schedulers.protocols.digraph import Digraph
from partreduce.topo.cluster import Cluster
from partreduce.topo.document.schedule import dump_schedule
from partreduce.topo.errors import InputError
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import AllReduce
from partreduce.topo.strategies.gap import Gap, Skip
from partreduce.verify import checker, prove
from partreduce.verify.checker.gaps import EventGraph
from partreduce.verify.gaps import gaps
from partreduce.verify.gaps.certificate import gap_certificate
from partreduce.verify.gaps.event_graph import event_graph
from partreduce.verify.gaps.exact import Distances
from partreduce.verify.gaps.skip import longest_skips
from partreduce.verify.properties.hop_suite import diamond

CHECKER = Path(checker.__file__).parent
Refusal = checker.Refusal
COUNT = 1000

SETTINGS = {
    "standard": Gap(),
    "staleness": Gap(staleness=2),
    "tokens": Gap(max_ig=3),
    "one token": Gap(max_ig=1),
    "staleness and tokens": Gap(staleness=1, max_ig=2),
    "NOTIFY-ACK": Gap(notify_ack=True),
    "NOTIFY-ACK and tokens": Gap(notify_ack=True, max_ig=2),
    "backup": Gap(backup=1),
    "backup and tokens": Gap(backup=1, max_ig=2),
    "hybrid": Gap(backup=1, staleness=1),
    "hybrid and tokens": Gap(backup=1, staleness=1, max_ig=3),
    "skips of a hybrid": Gap(backup=1, staleness=1, max_ig=3, skip=Skip(limit=4)),
    "long skips": Gap(staleness=3, max_ig=4, skip=Skip(limit=9, trigger=3)),
    "without tokens to start with": Gap(max_ig=0),
}
GRAPHS = {
    "ring": load_graph("ring:6"),
    "directed ring": load_graph("directed-ring:5"),
    "complete": load_graph("complete:4"),
    "star": load_graph("star:5"),
    "double ring": load_graph("double-ring:8"),
    "diamond": diamond(),
    "a way without return": Digraph.of(4, [(0, 1), (1, 2), (2, 0), (2, 3)]),
    "no cycle": Digraph.of(4, [(0, 1), (0, 2), (1, 3), (2, 3)]),
    "nobody talks": Digraph.of(2, []),
    "alone": Digraph.of(1, []),
}


def fitting(graph, setting):
    """The setting, with no more backup workers than a worker has in-neighbours."""
    backup = tuple(
        min(len(sources), spare)
        for sources, spare in zip(graph.sources, setting.backups(graph.num_workers), strict=True)
    )
    return replace(setting, backup=backup)


def confirmed(document):
    """What the checker proves of a document, after a round trip through JSON."""
    return dict(checker.check_gaps(json.loads(json.dumps(document))))


def falsehoods(document):
    """The claims of an accepted document that are false, judged by `verify.gaps` on the graph and setting it names."""
    graph = Digraph.of(document["graph"]["num_workers"], document["graph"]["edges"])
    raw = document["setting"]
    setting = Gap(
        max_ig=raw.get("max_ig"),
        staleness=raw["staleness"],
        backup=tuple(raw["backup"]),
        notify_ack=bool(raw["notify_ack"]),
        skip=Skip(limit=raw["skip"][0], trigger=raw["skip"][1]) if "skip" in raw else None,
    )
    if setting.skip is not None and setting.takes_all:
        return  # no worker runs like this
    truth = gaps(graph, setting, max_states=0)

    def false(claimed, exact):
        return claimed != -1 and (exact is None or claimed < exact)

    bound = truth.exact_bound
    for entry in document["claims"]:
        if entry["claim"] == "live":
            if not truth.live:
                yield "live"
        elif entry["claim"] == "pair":
            exact = bound[entry["to"]][entry["from"]]
            if false(entry["bound"], exact) or (entry["bound"] == -1 and exact is not None):
                yield "pair"
        elif entry["claim"] == "every-pair":
            if any(false(entry["bound"], exact) for row in bound for exact in row):
                yield "every-pair"
            for j, row in enumerate(entry["distances"]):
                if any(false(row[i], bound[i][j]) for i in range(graph.num_workers)):
                    yield f"every-pair from {j}"
        elif entry["claim"] == "skip":
            if entry["longest"] != list(longest_skips(graph, setting, bound)):
                yield "longest"
        else:
            for k, (u, v) in enumerate(graph.edges):
                ahead, back = entry["bounds"][k]
                if false(ahead, bound[u][v]) or false(back, bound[v][u]):
                    yield f"bounds[{k}]"
                if entry["update"][k] != -1 and false(entry["update"][k], truth.update_queue_capacity[v][u]):
                    yield f"update[{k}]"
                if "token" in entry and false(entry["token"][k], truth.token_queue_capacity[v][u]):
                    yield f"token[{k}]"


@pytest.mark.parametrize("name", SETTINGS)
def test_true_certificates_are_accepted(name):
    for graph in GRAPHS.values():
        setting = fitting(graph, SETTINGS[name])
        document = gap_certificate(graph, setting, every_pair=True)
        truth = gaps(graph, setting, max_states=0)
        n = graph.num_workers
        proved = confirmed(document)
        assert list(proved) == [entry["claim"] for entry in document["claims"]]
        assert ("live" in proved) == truth.live
        assert not list(falsehoods(document))
        largest = [bound for row in truth.exact_bound for bound in row]
        assert ("pair" in proved) == ("every-pair" in proved) == (bool(truth.live) or None not in largest)
        entries = {entry["claim"]: entry for entry in document["claims"]}
        if "pair" in entries:
            assert entries["pair"]["bound"] == (-1 if None in largest else max(largest))
            rows = entries["every-pair"]["distances"]
            for i in range(n):
                assert [rows[j][i] for j in range(n)] == [-1 if b is None else b for b in truth.exact_bound[i]]
        for k, (u, v) in enumerate(graph.edges):
            for key, expected in (("update", truth.update_queue_capacity), ("token", truth.token_queue_capacity)):
                if key in entries["queues"]:
                    assert entries["queues"][key][k] == (-1 if expected[v][u] is None else expected[v][u])


def test_certified_bounds_are_what_exploration_attains():
    """The checker says `attained`; every interleaving of Hop's worker agrees."""
    rng = random.Random("attained")
    for _ in range(40):
        graph = random_digraph(rng, rng.randrange(2, 5))
        setting = fitting(graph, SETTINGS[rng.choice(list(SETTINGS)[:-1])])
        found = gaps(graph, setting, max_states=60_000)
        if not found.exhausted:
            continue
        document = gap_certificate(graph, setting, every_pair=True)
        assert "attained" in confirmed(document)["pair"] or "no bound" in confirmed(document)["pair"]
        for j, row in enumerate(document["claims"][-1]["distances"]):
            for i in range(graph.num_workers):
                assert (None if row[i] == -1 else row[i]) == found.attained[i][j]


def random_digraph(rng, n):
    edges = {(v, (v + 1) % n) for v in range(n)} if rng.random() < 0.8 else set()
    edges |= {(rng.randrange(n), rng.randrange(n)) for _ in range(rng.randrange(2 * n + 1))}
    return Digraph.of(n, edges)


def numbers(value, path=()):
    """The places of all integers below a value."""
    if isinstance(value, int):
        yield path
    else:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            if not isinstance(item, str):
                yield from numbers(item, (*path, key))


def corrupt(rng, document, kind):
    """Change one thing; returns the place of what changed."""
    entries = {entry["claim"]: (i, entry) for i, entry in enumerate(document["claims"])}
    if kind in entries or kind == "setting":
        place = ("setting",) if kind == "setting" else ("claims", entries[kind][0])
        root = document["setting"] if kind == "setting" else entries[kind][1]
        path = rng.choice(list(numbers(root)))
        target = root
        for key in path[:-1]:
            target = target[key]
        old = target[path[-1]]
        if kind == "setting" and path[-1] == "notify_ack":
            target[path[-1]] = 1 - old
        else:
            choices = [old - 1, old + 1, 0, -1, rng.randrange(0, 9)]
            target[path[-1]] = rng.choice([value for value in choices if value != old])
        return (*place, *path)
    edges = document["graph"]["edges"]
    n = document["graph"]["num_workers"]
    if rng.random() < 0.5 and edges:
        del edges[rng.randrange(len(edges))]
    else:
        missing = [[u, v] for u in range(n) for v in range(n) if u != v and [u, v] not in edges]
        edges += [rng.choice(missing)] if missing else []
        edges.sort()
    return ("graph", "edges")


@pytest.mark.parametrize("kind", ["live", "queues", "skip", "pair", "every-pair", "setting", "graph"])
def test_a_corrupted_certificate_gets_no_false_claim_accepted(kind, record_property):
    rng = random.Random(f"corrupt {kind}")
    refused = named = accepted = 0
    count = COUNT // 4 if kind == "skip" else COUNT  # few settings have it, and most graphs are drawn in vain
    while refused + accepted < count:
        graph = random_digraph(rng, rng.randrange(2, 7))
        setting = fitting(graph, SETTINGS[rng.choice(list(SETTINGS))])
        original = gap_certificate(graph, setting, every_pair=True)
        if kind in {"live", "skip", "pair", "every-pair"} and all(
            entry["claim"] != kind for entry in original["claims"]
        ):
            continue
        if kind == "queues" and not graph.edges:
            continue
        document = copy.deepcopy(original)
        place = corrupt(rng, document, kind)
        if document == original:
            continue
        try:
            confirmed(document)
        except Refusal as refusal:
            refused += 1
            sentence, status = refusal.args
            assert status in {1, 65}
            # A graph or setting that is changed shows at the first claim it breaks, or where the two do not fit.
            entries = (f"claims[{place[1]}]",) if place[0] == "claims" else ("claims[", "graph", "setting")
            named += sentence.startswith(entries)
            continue
        accepted += 1
        assert not list(falsehoods(document)), (document, place)
    record_property("refused", refused)
    record_property("true after the change", accepted)
    assert named == refused
    assert refused > 0


def test_claims_too_small_by_one_are_always_refused():
    """Each finite bound alone, with the distance it stands on lowered as well: never accepted."""
    rng = random.Random("too small")
    tried = 0
    while tried < COUNT:
        graph = random_digraph(rng, rng.randrange(2, 6))
        document = gap_certificate(graph, fitting(graph, SETTINGS[rng.choice(list(SETTINGS))]))
        entry = document["claims"][-1]
        if entry["claim"] != "pair" or entry["bound"] < 1:
            continue
        tried += 1
        lower = rng.randrange(1, entry["bound"] + 1)
        entry["bound"] -= lower
        # A forger lowers every distance at and above the bound together, so that neighbours still agree.
        entry["distances"] = [d - lower if d >= entry["bound"] + lower else d for d in entry["distances"]]
        with pytest.raises(Refusal, match="claims"):
            confirmed(document)


@pytest.mark.parametrize("name", [name for name, setting in SETTINGS.items() if setting.max_ig != 0])
def test_of_all_small_distances_only_the_true_ones_are_accepted(name):
    """Every vector of distances -1..3 on two workers, 15,625 for each setting and graph: no forgery is left out."""
    for edges in ([(0, 1), (1, 0)], [(0, 1)]):
        graph = Digraph.of(2, edges)
        document = gap_certificate(graph, fitting(graph, SETTINGS[name]))
        events = EventGraph(document["graph"], document["setting"])
        accepted = []
        for given in itertools.product(range(-1, 4), repeat=6):
            try:
                events.confirm_all_distances(0, list(given), "distances")
            except Refusal:
                continue
            accepted.append(list(given))
        column = Distances(event_graph(graph, fitting(graph, SETTINGS[name]))).from_event(0)
        true = [-1 if d is None else d for d in column]
        assert accepted == ([true] if max(true) <= 3 else [])


def test_circular_support_does_not_prove_a_bound():
    """Events that lean on one another alone have no distance."""
    document = gap_certificate(Digraph.of(3, [(0, 1), (1, 0)]), Gap(max_ig=1), every_pair=True)
    entry = document["claims"][-1]
    assert entry["distances"][0][2] == -1
    entry["distances"][0][2] = entry["distances"][0][8] = 0
    with pytest.raises(Refusal, match=r"distances\[0\] \(reduce 2\) is 0; expected no finite number"):
        confirmed(document)


def test_the_refusal_names_place_value_and_what_was_expected(tmp_path):
    document = gap_certificate(load_graph("ring:6"), Gap(max_ig=2))
    pair = document["claims"][-1]
    event = next(e for e, d in enumerate(pair["distances"]) if d == 2)
    pair["distances"][event] = 1
    path = tmp_path / "c.json"
    path.write_text(json.dumps(document))
    result = run_checker(path)
    assert result.returncode == 1
    assert "live: proved" in result.stdout
    assert "refuted: claims[2] (pair).distances (" in result.stdout
    assert "; expected " in result.stdout


MALFORMED = {
    "a key twice": lambda text: text.replace('"version": 1', '"version": 1, "version": 1'),
    "true": lambda text: text.replace('"notify_ack": 0', '"notify_ack": false'),
    "a float": lambda text: text.replace('"staleness": 0', '"staleness": 0.0'),
    "an unknown key": lambda text: text.replace('"staleness": 0', '"staleness": 0, "max_jump": 2'),
    "another version": lambda text: text.replace('"version": 1', '"version": 2'),
    "half a file": lambda text: text[: len(text) // 2],
    "deep lists": lambda text: text.replace('"graph": {', '"graph": ' + "[" * 100_000 + "{", 1),
    "too many workers": lambda text: text.replace('"num_workers": 6', '"num_workers": 2147483647'),
    "an edge twice": lambda text: text.replace("[0, 1]", "[0, 1], [0, 1]", 1),
    "a self-loop": lambda text: text.replace("[0, 1]", "[0, 0], [0, 1]", 1),
    "no claims": lambda text: json.dumps({**json.loads(text), "claims": []}),
    "a claim twice": lambda text: json.dumps({**json.loads(text), "claims": json.loads(text)["claims"][:1] * 2}),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_what_cannot_be_read_ends_with_65(name, tmp_path):
    text = json.dumps(gap_certificate(load_graph("ring:6"), Gap()))
    changed = MALFORMED[name](text)
    assert changed != text
    path = tmp_path / "c.json"
    path.write_text(changed)
    result = run_checker(path)
    assert result.returncode == 65, result.stdout
    assert result.stdout.startswith("unreadable: ") or "\nunreadable: " in result.stdout
    assert not result.stderr


@pytest.mark.parametrize("name", ["checker", "a copy of version-1.0", "json"])
def test_the_program_is_one_folder_that_runs_under_any_name_with_nothing_but_python(tmp_path, name):
    """Also beside files that are called like modules of the standard library: nothing but the folder is imported."""
    shutil.copytree(CHECKER, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    for beside in ("fractions.py", "random.py", "refusal.py"):
        (tmp_path / beside).write_text("raise ImportError('a stranger was imported')")
    (tmp_path / "c.json").write_text(json.dumps(gap_certificate(load_graph("ring:6"), Gap(max_ig=2))))
    line = [sys.executable, "-I", "-S", str(tmp_path / name), "c.json"]
    result = subprocess.run(line, env={}, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert result.returncode == 0, result.stdout + result.stderr
    assert [line.split(": ")[:2] for line in result.stdout.splitlines()] == [
        ["live", "proved"], ["queues", "proved"], ["pair", "proved"],
    ]  # fmt: skip
    assert "<= 3, attained" in result.stdout


def test_one_program_checks_both_certificates_and_says_which_files_each_needs(tmp_path):
    schedule = Schedule("all", Cluster.regular(2, 2), AllReduce())
    for name, document in (
        ("gaps", gap_certificate(load_graph("ring:6"), Gap())),
        ("claims", dict(prove(schedule).certificate)),
        ("schedule", dump_schedule(schedule)),
    ):
        (tmp_path / name).write_text(json.dumps(document))

    def answer(*names):
        line = [sys.executable, "-I", str(CHECKER), *(str(tmp_path / name) for name in names)]
        result = subprocess.run(line, capture_output=True, text=True, check=False, timeout=60)
        return result.returncode, result.stdout.split(":")[0], "schedule" in result.stdout

    assert answer("gaps") == (0, "live", False)
    assert answer("claims", "schedule") == (0, "conflict-free", False)
    assert answer("gaps", "schedule") == (65, "unreadable", True)
    assert answer("claims") == (65, "unreadable", True)


def test_the_part_on_queues_is_linear_in_edges_on_rings():
    def size(n):
        claims = gap_certificate(load_graph(f"ring:{n}"), Gap(max_ig=3))["claims"]
        return len(list(numbers(next(entry for entry in claims if entry["claim"] == "queues"))))

    assert size(64) == 2 * size(32) == 4 * size(16)


def test_with_skips_the_gaps_stay_and_a_longer_skip_is_refused():
    graph, plain = load_graph("ring:6"), Gap(max_ig=3, backup=1)
    without, document = (gap_certificate(graph, s) for s in (plain, replace(plain, skip=Skip(limit=10))))
    skip = next(entry for entry in document["claims"] if entry["claim"] == "skip")
    assert [entry for entry in document["claims"] if entry != skip] == without["claims"]
    assert skip["longest"] == [3] * 6
    assert confirmed(document)["skip"].startswith("no worker skips more than 3 steps")
    for place in range(6):
        for wrong in (0, 2, 4):
            changed = copy.deepcopy(document)
            next(e for e in changed["claims"] if e["claim"] == "skip")["longest"][place] = wrong
            with pytest.raises(Refusal, match=r"claims\[2\] \(skip\).longest"):
                confirmed(changed)
    entries = {entry["claim"]: entry for entry in document["claims"]}
    with pytest.raises(Refusal, match="behind the claim queues"):
        confirmed({**document, "claims": [entries["live"], entries["skip"], entries["queues"]]})
    with pytest.raises(Refusal, match="goes with skip"):
        confirmed({**without, "claims": document["claims"]})


run = runner(command)


def test_the_command_writes_a_certificate_that_the_program_confirms(tmp_path):
    path = tmp_path / "c.json"
    shown = run("ring:6", "--set", "max-ig=2", "--set", "backup=1", "--certificate", str(path), "--every-pair").stdout
    assert f"python -I {CHECKER} {path}" in shown.replace("\n", "")
    result = run_checker(path)
    assert result.returncode == 0, result.stdout
    assert [line.split(":")[0] for line in result.stdout.splitlines()] == ["live", "queues", "pair", "every-pair"]
    with pytest.raises(InputError, match="--every-pair"):
        run("ring:6", "--every-pair")
