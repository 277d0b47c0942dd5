"""The single proof methods: exactness, functions, the program."""

import json
import random
import sys
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from benchmarks.forgery.schedules import explicit, graph
from helpers.golden import GOLDEN
from helpers.readings import written
from helpers.warm_checker import run_checker
from partreduce import Cluster, Schedule, metrics, write_schedule
from partreduce.errors import InputError, RefutedError
from partreduce.strategies import Block, Group, NeighborAveraging, Round, RulePhases, StaticGroups
from partreduce.topo.metrics.evaluate import growth_bits
from partreduce.verify import Status, checker, prove
from partreduce.verify.certificate import certificate_bytes, confirm
from partreduce.verify.prove import prove_function

CHECKER = Path(checker.__file__).parent


def accepted(schedule):
    """The claims that the checker confirms, and the facts that it states, in this process."""
    from partreduce.topo.document.schedule import dump_schedule

    read = checker.read_schedule(dump_schedule(schedule))
    proved = list(checker.check(json.loads(certificate_bytes(prove(schedule).certificate)), read))
    return proved + [fact.name for fact in checker.facts(read)]


# Exactness and rounds


def test_labels_prove_a_hyper_cuboid_exact_at_any_place_of_the_period():
    n, dims = 24, (2, 3, 4)
    grid = np.arange(n).reshape(dims)
    phases = [[list(g) for g in np.moveaxis(grid, axis, -1).reshape(-1, dims[axis])] for axis in range(3)]
    schedule = explicit(n, [[5, 6]], *phases, [[0, 1]])
    entry = prove(schedule)["exact-consensus"].entry
    assert (entry["method"], entry["first"], entry["radices"]) == ("labels", 1, [2, 3, 4])
    assert "exact-consensus" in accepted(schedule)


@pytest.mark.parametrize("n", [5, 6])
def test_relaxed_pairs_are_exact_by_their_product(n):
    text = GOLDEN["relaxed_pairs_exact"][str(n)]
    phases = []
    for line in text:
        *pairs, weight = line.replace(")(", ") (").split()
        phases.append([Group((int(p[1]), int(p[2])), 2 * Fraction(weight)) for p in pairs])
    schedule = explicit(n, *phases)
    assert prove(schedule)["exact-consensus"].entry["method"] == "product"
    assert "exact-consensus" in accepted(schedule)


def test_almost_exact_is_not_called_exact():
    almost = Fraction(1) + Fraction(1, 10**9)
    assert "exact-consensus" not in prove(explicit(4, [[0, 1], [2, 3]], [Group((0, 2), almost), Group((1, 3), almost)]))


@pytest.mark.parametrize("power", [6, 9, 12, 15])
def test_a_bound_that_floats_cannot_follow_is_proved_without_them(power):
    """Differences grow by 10^power and shrink by as much: floats said 0.99995 of a contraction of 1 − 10⁻¹²."""
    n, grown = 64, Fraction(10**power)
    shrunk = Group(tuple(range(n)), (grown - 1) / grown)
    schedule = explicit(n, [Group((2 * i, 2 * i + 1), grown) for i in range(n // 2)], [shrunk])
    claim = prove(schedule)["contraction"]
    assert claim.entry is not None
    assert Fraction(claim.entry["squared"]) >= ((grown - 1) / grown) ** 2
    assert "contraction" in accepted(schedule)


@pytest.mark.parametrize("relaxation", ["9" * 64, "-" + "9" * 64, 10**8])
@pytest.mark.parametrize("phases", [1, 6])
def test_factors_beyond_floats_have_a_bound_and_no_metrics(relaxation, phases):
    """An assertion failed, floats overflowed, or the radius was no number."""
    relaxation = Fraction(relaxation)
    edges = [(0, 1, relaxation), (1, 2, Fraction(1, 3)), (2, 0, Fraction(1, 2))]
    many = Schedule("g", Cluster.regular(3, 1), NeighborAveraging(rounds=(Round.from_edges(3, edges),) * phases))
    rule = ((Block((0,), (0,), relaxation), Block((1,), (0,))), (Block((0, 1), (), relaxation),)) * phases
    schedules = [
        explicit(3, *[[Group((0, 1), relaxation)], [Group((1, 2), relaxation)]] * phases),
        Schedule("r", Cluster.regular(2, 2), StaticGroups(phases=RulePhases(node_radices=(2,), phases=rule))),
        many,
    ]
    for schedule in schedules:
        found = metrics(schedule)
        assert found.radius.value is None
        assert found.contraction.how.startswith("not found: differences may grow by 2^")
        assert prove(schedule)["consensus"].status is not Status.PROVED
        assert "deadlock-free" in accepted(schedule)


def test_growth_is_that_of_norms():
    """Groups and rounds whose differences cannot grow are at 0, whatever their number; others add up."""
    tame = [[Group((0, 1), Fraction(2))], [Group((1, 2), Fraction(0))]] * 50
    assert growth_bits(explicit(3, *tame)) == 0
    assert growth_bits(explicit(3, *[[Group((0, 1), Fraction(-1))]] * 5)) == 5
    assert growth_bits(graph(3, [(0, 1, Fraction(1, 2)), (1, 2, Fraction(1))])) == 0
    apart = graph(2, [(0, 1, Fraction(-1)), (1, 0, Fraction(-1))])  # a difference d becomes 3·d
    assert growth_bits(apart) == pytest.approx(np.log2(3))


def test_a_rate_that_is_too_good_is_refused():
    draw, refused = random.Random(3), 0
    from partreduce.schedulers.registry import build
    from partreduce.topo.document.schedule import dump_schedule

    for schedule in (
        build("prague-figure-10", Cluster.regular(4, 2)),
        explicit(5, [[0, 1], [2, 3, 4]], [[1, 2]], [[0, 4]]),
    ):
        certificate = json.loads(certificate_bytes(prove(schedule).certificate))
        read = checker.read_schedule(dump_schedule(schedule))
        entry = next(e for e in certificate["claims"] if e["claim"] == "contraction")
        true = Fraction(entry["squared"])
        for _ in range(150):
            entry["squared"] = str(true * Fraction(draw.randrange(10**6 - 1), 10**6))
            with pytest.raises(checker.Refusal, match="squared"):
                list(checker.check(certificate, read))
            refused += 1
    assert refused == 300


@pytest.mark.parametrize("squared", ["1", "3/2"])
def test_a_power_that_does_not_shrink_proves_no_consensus(squared):
    from partreduce.topo.document.schedule import dump_schedule

    schedule = graph(4, [(i, (i + 1) % 4, Fraction(1)) for i in range(4)])
    certificate = json.loads(certificate_bytes(prove(schedule).certificate))
    certificate["claims"] = [{"claim": "consensus", "method": "power", "periods": 2, "squared": squared}]
    with pytest.raises(checker.Refusal, match="below 1"):
        list(checker.check(certificate, checker.read_schedule(dump_schedule(schedule))))


# Gaps


# Functions


def ring_pairs(worker, step, cluster):
    n = cluster.num_workers
    base = worker - (worker - step) % 2
    return {base % n, (base + 1) % n}


def test_a_phase_function_is_expanded_proved_and_exported(tmp_path):
    found = prove_function(ring_pairs, Cluster.regular(8, 1), 2, name="ring-pairs")
    assert found.proof.verdict is Status.PROVED
    assert found.schedule is not None
    assert found.schedule.phase(1)[0].members == (0, 7)
    assert "period 2" in found.scope
    write_schedule(tmp_path / "s.json", found.schedule)
    (tmp_path / "c.json").write_bytes(certificate_bytes(found.proof.certificate))
    assert checker.main([str(tmp_path / "c.json"), str(tmp_path / "s.json")]) == 0


def test_members_that_disagree_are_named():
    proof = prove_function(lambda w, s, c: {w, (w + 1) % c.num_workers}, Cluster.regular(4, 1), 1, "f").proof
    assert proof.verdict is Status.REFUTED
    assert proof["membership"].witness["member"] == 1
    with pytest.raises(RefutedError, match="membership is refuted"):
        proof.require()


def test_a_wrong_period_is_refuted():
    proof = prove_function(
        lambda w, s, c: {0, 1} if w < 2 and s % 3 == 0 else None, Cluster.regular(4, 1), 2, "f"
    ).proof
    assert "declared period 2 is wrong" in proof["membership"].explanation


def _stranger(worker, step, cluster):
    return (0, 1)


@pytest.mark.parametrize(
    ("function", "said"),
    [
        (lambda w, s, c: 1 / 0, "raised ZeroDivisionError"),
        (lambda w, s, c: sys.exit(0), "raised SystemExit: 0"),
        (lambda w, s, c: (_ for _ in ()).throw(ValueError("one\ntwo")), "raised ValueError: one two"),
        (lambda w, s, c: {w, 99}, "ranks 0..3"),
        (lambda w, s, c: {w, "x"}, "TypeError"),
        (lambda w, s, c: {w, 2.5}, "plain integers"),
    ],
)
def test_a_function_that_fails_gives_one_sentence(function, said):
    with pytest.raises(InputError, match=said) as error:
        prove_function(function, Cluster.regular(4, 1), 1, "f")
    assert "\n" not in str(error.value)


def test_a_function_whose_worker_is_not_in_its_own_group_is_refuted():
    assert (
        "in which it is not" in prove_function(_stranger, Cluster.regular(3, 1), 1, "f").proof["membership"].explanation
    )


def test_a_function_that_answers_by_chance_is_refuted():
    draws = random.Random(0)
    proof = prove_function(
        lambda w, s, c: {0, 1} if w < 2 and draws.random() < 0.5 else None, Cluster.regular(1, 8), 16, "chance"
    ).proof
    assert proof.verdict is Status.REFUTED


@pytest.mark.parametrize(("period", "said"), [(0, "at least 1 step"), (10**7, "evaluations; at most")])
def test_a_period_that_cannot_be_asked_is_an_error(period, said):
    with pytest.raises(InputError, match=said):
        prove_function(ring_pairs, Cluster.regular(8, 1), period, "f")


# The program


def program(folder, certificate, schedule):
    (folder / "c.json").write_bytes(certificate)
    (folder / "s.json").write_bytes(schedule)
    return run_checker(folder / "c.json", folder / "s.json")


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("good", 0), ("duplicate key", 65), ("float", 65), ("true", 65), ("nan", 65), ("huge", 65), ("deep", 65),
        ("cut", 65), ("unknown claim", 65), ("repeated claim", 65), ("no claims", 0), ("other hash", 1),
        ("latin", 65), ("list", 65),
    ],
)  # fmt: skip
def test_the_program_answers_every_file_with_one_line_and_its_exit_status(tmp_path, name, code):
    schedule = explicit(4, [[0, 1], [2, 3]], [[0, 2], [1, 3]])
    write_schedule(tmp_path / "s.json", schedule)
    text = certificate_bytes(prove(schedule).certificate)
    document = json.loads(text)
    first = document["claims"][0]
    forged = {
        "good": text,
        "duplicate key": text.replace(b'"version":1', b'"version":1,"version":1'),
        "float": text.replace(b'"version":1', b'"version":1.0'),
        "true": text.replace(b'"version":1', b'"version":true'),
        "nan": text.replace(b'"version":1', b'"version":NaN'),
        "huge": text.replace(b'"version":1', b'"version":' + b"9" * 5000),
        "deep": b"[" * 100_000,
        "cut": text[:-40],
        "unknown claim": json.dumps({**document, "claims": [first, {"claim": "fast"}]}).encode(),
        "repeated claim": json.dumps({**document, "claims": [first, first]}).encode(),
        "no claims": json.dumps({**document, "claims": []}).encode(),
        "other hash": json.dumps({**document, "schedule_sha256": "0" * 64}).encode(),
        "latin": text.replace(b"partreduce.cert", b"pr\xe9duce.cert"),
        "list": b"[1]",
    }[name]
    result = program(tmp_path, forged, (tmp_path / "s.json").read_bytes())
    assert (result.returncode, result.stderr) == (code, ""), result.stdout
    if code:
        assert result.stdout.splitlines()[-1].startswith("refuted" if code == 1 else "unreadable")


def test_an_embedded_certificate_is_confirmed_and_a_changed_schedule_is_refused():
    schedule = explicit(4, [[0, 1], [2, 3]], [[0, 2], [1, 3]])
    carrying = schedule.with_certificate(prove(schedule).certificate)
    assert "exact-consensus" in confirm(carrying)
    other = explicit(4, [[0, 1], [2, 3]], [[0, 2]]).with_certificate(carrying.certificate)
    for wrong in (schedule, other):
        with pytest.raises(RefutedError, match="certificate"):
            confirm(wrong)


def test_a_hand_written_file_in_another_order_has_the_same_certificate(tmp_path):
    schedule = explicit(4, [[0, 1], [2, 3]], [[0, 2], [1, 3]])
    raw = {
        "strategy": {
            "steps_per_round": [1, 1, 1, 1], "sync": "synchronous", "transport": {"algorithm": "ring"},
            "kind": "static", "prologue": 0, "averaging": "mean",
            "phases": [[{"relaxation": "2/2", "group": [3, 2]}, {"group": [1, 0]}],
                [{"group": [3, 1]}, {"group": [0, 2]}]],
        },
        "cluster": {"nodes": [[0], [1], [2], [3]]}, "name": "x", "version": 1, "format": "partreduce.schedule",
    }  # fmt: skip
    certificate = certificate_bytes(prove(schedule).certificate)
    result = program(tmp_path, certificate, json.dumps(raw, indent=3).encode())
    assert (result.returncode, result.stdout.count("\n")) == (65, 1)
    assert "--export NEW` writes a file in the one form" in result.stdout
    assert program(tmp_path, certificate, json.dumps(written(raw), indent=3).encode()).returncode == 0


def test_the_checker_imports_nothing_but_the_standard_library_and_itself():
    import ast

    files = list(CHECKER.rglob("*.py"))
    assert len(files) > 10
    for file in files:
        depth = len(file.relative_to(CHECKER).parts)
        for node in ast.walk(ast.parse(file.read_text())):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                assert node.level <= depth, (file, "an import that leaves the folder")
                names = [] if node.level else [node.module]
            assert all(name.split(".")[0] in sys.stdlib_module_names for name in names), (file, names)
