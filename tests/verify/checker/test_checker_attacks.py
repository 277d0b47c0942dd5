"""Forged and hostile certificates against the standalone checker: refused without hang, traceback or a gigabyte.

Every attack runs the program on files under memory and time limits. The certificates carry the correct hashes.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.edges import certificate, document, graph, groups
from helpers.warm_checker import run_checker
from partreduce.verify import checker

GIGABYTE, SECONDS = 2**30, 30
PROGRAM = Path(checker.__file__).parent


def run(tmp_path, raw, forged):
    """Return exit status and output of the program; files are given as values or bytes."""
    names = []
    for name, content in (("certificate", forged), ("schedule", raw)):
        names.append(tmp_path / f"{name}.json")
        names[-1].write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    done = run_checker(*names, memory=GIGABYTE, timeout=SECONDS)
    assert not done.stderr
    assert "MemoryError" not in done.stdout
    return done.returncode, done.stdout


PAIR = groups(2, [([0, 1], "1/2")])
MANY = 2 * 10**9
POWER = {"claim": "consensus", "method": "power", "squared": "1/2"}
TREES = {"claim": "consensus", "method": "trees"}
EXACT = {"claim": "exact-consensus", "method": "product"}
BLOCKS = document(
    4096, 12, kind="static", node_radices=[2] * 12, phases=[[{"local": [0], "across": [i % 12]}] for i in range(3000)]
)
WIDE = document(2, MANY // 2, kind="static", node_radices=[2], phases=[[{"local": [0], "across": [0]}]])
DENSE = groups(64, *[[(list(range(64)), f"{10**63 + k}/{10**63 + 7}")] for k in range(3)])
BIG_LINE = graph(MANY, [(0, 1, "1/2"), (1, 0, "1/2")])
DOUBLE = groups(400001, [[2 * i, 2 * i + 1] for i in range(200000)] + [[399999, 400000]])
ASKED = {"claim": "membership", "answers": "0" * 64}
HUGE_RULE = document(2**30, 1, kind="static", node_radices=[2] * 30, phases=[[{"local": [0], "across": [0]}]])
FACTOR = {"claim": "contraction", "method": "factor", "squared": "2"}
NOISE = {"claim": "consensus-distance", "at_most": "9", "bits": 8, "covariance": [[9**9, 0, 9**9]]}
LONG_STEPS_PER_ROUND = document(2, 1, kind="static", phases=[[{"group": [0, 1]}]], steps_per_round=10**9)
ATTACKS = {
    "factor of two billion workers": (groups(MANY, [[0, 1]]), FACTOR),
    "factor of 2000 workers": (groups(2000, [[0, 1]]), FACTOR),
    "a norm next to 0": (PAIR, {**FACTOR, "squared": "1/" + "9" * 3000}),
    "noise of two billion workers": (groups(MANY, [[0, 1]]), NOISE),
    "noise of a billion steps a round": (LONG_STEPS_PER_ROUND, NOISE),
    "a covariance of long numbers": (PAIR, {**NOISE, "covariance": [[9**900, 0, 9**900]]}),
    "answers of a billion workers": (HUGE_RULE, ASKED),
    "power of a billion periods": (PAIR, {**POWER, "periods": 2 * 10**8}),
    "power of nothing": (groups(2, []), {**POWER, "periods": 2 * 10**8}),
    "trees of two billion workers": (groups(MANY, [[0, 1]]), {**TREES, "trees": [[]]}),
    "product of 30000 workers": (groups(30000, [[0, 1]]), EXACT),
    "pivots of 500 workers": (groups(500, [[0, 1]]), {**POWER, "claim": "contraction", "method": "pivots",
        "squared": "2"}),
    "tree of a huge graph": (BIG_LINE, {"claim": "consensus", "method": "graph", "root": 0, "tree": []}),
    "classes of 3000 phases and 12 digits": (BLOCKS, EXACT),
    "power of long factors": (DENSE, {**POWER, "periods": 10**5}),
    "half a character": (PAIR, {"claim": "\ud800"}),
    "a proof in a name": (PAIR, {"claim": "x\nconsensus: proved\n"}),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_attack_is_refused_in_one_line(name, tmp_path):
    raw, claim = ATTACKS[name]
    code, output = run(tmp_path, raw, certificate(raw, claim))
    (refusal,) = output.splitlines()
    assert code in (1, 65), output
    assert refusal.startswith("refuted: " if code == 1 else "unreadable: ")
    assert refusal.isascii()
    assert "Error" not in refusal


SAMPLES = {
    "membership": {"answers": "0" * 64},
    "outer-consensus": {"squared": "1/2", "weights": [[1, 0, 1]]},
    "consensus/trees": {"trees": [[[0, 0, 1]], [[0, -1, 0]]]},
    "consensus/graph": {"root": 0, "tree": [[0, 0, 1]]},
    "consensus/power": {"periods": 1, "squared": "1/2"},
    "contraction/pivots": {"squared": "2"},
    "contraction/factor": {"squared": "2"},
    "contraction/norms": {"squared": "2"},
    "consensus-distance": {"at_most": "9", "bits": 8, "covariance": [[9], [9]]},
    "exact-consensus/product": {},
    "exact-consensus/labels": {"first": 0, "radices": [2], "labels": [0, 1]},
    "survives": {"failures": 4, "classes": [], "answers": ""},
}
OUTER = {"payload": {"outer": {"lr": "1/2", "outer_params": "per_worker"}}}
NODES = {"kind": "static", "node_radices": [2], "phases": [[{"local": [0], "across": [0]}]]}
HOLD = {"consensus/power", "contraction/pivots", "consensus-distance", "exact-consensus/product"}
BILLION = {
    "nodes": (document(10**9, 1, **NODES | {"node_radices": [10**9]}), HOLD),
    "local ranks": (WIDE, ()),
    "nodes with outer parameters": (document(10**9, 1, **NODES | {"node_radices": [10**9]} | OUTER), ()),
    "local ranks with outer parameters": (document(2, 10**9, **NODES | OUTER), ()),
    **{f"local ranks of which some fail, {rule}": (document(2, 8 * 10**6, **NODES)
        | {"failure_plan": {"rule": rule, "failures": 4}}, ()) for rule in ("keep_groups", "reapply_rule")},
    "listed workers of which some fail":
        (groups(2**24, [[0, 1]]) | {"failure_plan": {"rule": "keep_groups", "failures": 4}}, ()),
    "workers that all average":
        (document(2**30, 1, kind="allreduce") | {"failure_plan": {"rule": "all_reduce", "failures": 4}},
        {*HOLD, "survives"}),
}  # fmt: skip
"""Rules and groups of up to a billion workers, and the claims that hold of them."""


@pytest.mark.parametrize("name", BILLION)
def test_claims_of_a_billion_workers_are_decided_within_a_gigabyte(name, tmp_path):
    raw, hold = BILLION[name]
    assert set(SAMPLES) == set(checker.CLAIMS)
    for claim, members in SAMPLES.items():
        word, _, method = claim.partition("/")
        entry = {"claim": word, **({"method": method} if method else {}), **members}
        code, output = run(tmp_path, raw, certificate(raw, entry))
        assert (code == 0) == (claim in hold), (claim, output)
        assert code in (0, 1, 65)
        if claim == "survives" and "of which some fail" in name:
            assert "over 1048576 workers, or workers on a node of a rule" in output


HOSTILE = {
    "two billion workers": (groups(MANY, [[0, 1]]), 0),
    "a billion local ranks": (WIDE, 0),
    "thirty digits": (HUGE_RULE, 0),
    "3000 phases and 12 digits": (BLOCKS, 0),
    "a graph of two billion workers": (BIG_LINE, 0),
    "a billion steps a round": (LONG_STEPS_PER_ROUND, 0),
    "factors without a common denominator": (DENSE, 0),
    "a codec of two billion workers": (document(2, MANY // 2, kind="allreduce", transport={"codec": "bfloat16"}), 0),
    "a gap of two billion workers": (document(MANY, 1, **BIG_LINE["strategy"] | {"sync": {"iteration_gap": {}}}), 65),
    "a worker in two groups of 400001 workers": (DOUBLE, 1),
}
"""Schedules that would need gigabytes or hours, with the exit status of the program."""


@pytest.mark.parametrize("name", HOSTILE)
def test_facts_of_hostile_schedules_are_bounded_or_omitted(name, tmp_path):
    raw, status = HOSTILE[name]
    shape = {"schedule_sha256": "0" * 64, "num_workers": 2, "period": 1}
    try:
        honest = certificate(raw)
    except checker.Refusal:
        honest = {**certificate(PAIR), **shape}
    code, output = run(tmp_path, raw, honest)
    assert code == status, output
    if not code:
        assert "deadlock-free: follows from the protocol's rules" in output
        assert max(map(len, output.splitlines())) < 1000
    last = output.splitlines()[-1]
    assert last.startswith("refuted: ") == (code == 1)
    assert last.startswith("unreadable: ") == (code == 65)


@pytest.mark.parametrize("text", [
    b"[" * 100000, b'{"claims":' + b"[" * 100000, b"\xef\xbb\xbf{}", b"\xff", b'{"a":1,"a":1}', b'{"version":1.0}',
    b'{"version":NaN}', b'{"version":true}', b'{"version":' + b"9" * 5000 + b"}", b'{"version":1e999999999}', b"",
    b"[1]", b'{"version":1,"format":"pr\xe9duce"}', json.dumps(certificate(PAIR)).encode()[:-40],
])  # fmt: skip
def test_hostile_file_is_unreadable(text, tmp_path):
    assert run(tmp_path, PAIR, text)[0] == 65
    assert run(tmp_path, text, certificate(PAIR))[0] == 65


def test_endless_file_is_unreadable():
    done = subprocess.run(
        [sys.executable, "-I", PROGRAM, "/dev/zero", "/dev/zero"],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 65
    assert "larger than" in done.stdout
