"""The checker reads and refuses what the loader does: the same canonical hash, or no schedule for either."""

from __future__ import annotations

import json
import math
import random
from collections import Counter

import pytest
import sympy

from benchmarks.forgery.campaign import donors
from benchmarks.forgery.mutations import fresh, mutate
from benchmarks.forgery.schedules import SCHEDULES
from helpers.edges import graph, groups, rule
from helpers.read_edges import READ_EDGES, gap
from partreduce.topo.document.canonical import schedule_sha256
from partreduce.topo.document.schedule import dump_schedule, parse_schedule
from partreduce.topo.errors import PartreduceError
from partreduce.verify import checker
from partreduce.verify.checker.strict_json import read_file


def loaded(text):
    """The hash that the loader computes, and why it refuses."""
    try:
        return schedule_sha256(parse_schedule(text.encode())), ""
    except PartreduceError as error:
        return None, str(error)


def read(text):
    """The hash that the checker computes, and why it refuses; what its program calls unreadable is a refusal."""
    try:
        return checker.read_schedule(json.loads(text)).sha256, ""
    except checker.Refusal as refusal:
        return None, refusal.sentence
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        return None, type(error).__name__


def agree(raw, seen):
    text = json.dumps(raw)
    (expected, why), (found, refusal) = loaded(text), read(text)
    assert found == expected, (text, why, refusal)
    seen[expected is not None] += 1


def test_of_corrupted_documents():
    draw, seen = random.Random("documents"), Counter()
    raws = {name: dump_schedule(schedule) for name, schedule in SCHEDULES.items()}
    while seen.total() < 2500:
        raw = fresh(draw.choice(list(raws.values())))
        whole = raw if draw.random() < 0.5 else {name: raw[name] for name in ("strategy", "cluster")}
        for _ in range(draw.choice((1, 1, 2, 3))):
            mutate(draw, whole, donors())
        agree(raw, seen)
    assert min(seen.values()) > 500


def gap_document(draw):
    """A weighted graph with any setting of a gap."""
    n = draw.randrange(2, 6)
    pairs = sorted({(u, v) for u in range(n) for v in range(n) if u != v and draw.random() < 0.45})
    number = Counter(v for _, v in pairs)
    values = {
        "max_ig": lambda: draw.choice([0, 1, 2, 2, None, 2**31 - 1, 2**31]),
        "staleness": lambda: draw.choice([0, 1, 2, 65535, 65536]),
        "backup": lambda: draw.choice([0, 1, 1, 2, [draw.randrange(2) for _ in range(draw.choice([n, n, n + 1]))], []]),
        "skip": lambda: draw.choice([None, {"limit": draw.randrange(1, 5)}, {"limit": 3, "trigger": draw.randrange(5)},
            {"limit": 3, "behind": draw.randrange(5)}]),
        "update_order": lambda: draw.choice(["dpsgd", "adapt_then_combine"]),
        "notify_ack": lambda: draw.choice([True, False]),
        "weights": lambda: draw.choice(["uniform", "iteration", "graph"]),
    }  # fmt: skip
    gap = {name: values[name]() for name in draw.sample(list(values), draw.choice([0, 1, 1, 2, 3]))}
    if draw.random() < 0.5:
        gap["max_ig"] = 3
    uniform = [f"1/{number[v] + 1}" for _, v in pairs]
    rounds = [{"edges": list(map(list, pairs)), "weights": draw.choice(["1/4", "1/5", 1, 0, "-1/5", uniform, "2/8"])}]
    strategy = {"kind": "neighbor", "rounds": rounds * draw.choice([1, 1, 1, 1, 2]), "sync": {"iteration_gap": gap}}
    if draw.random() < 0.2:
        strategy["steps_per_round"] = draw.choice([2, [1] * n, [2] * n, [*[1] * (n - 1), 2]])
    cluster = {"num_nodes": n, "workers_per_node": 1}
    return {"format": "partreduce.schedule", "version": 1, "name": "x", "cluster": cluster, "strategy": strategy}


def test_of_graphs_and_gaps_drawn_at_random():
    draw, seen = random.Random("gaps"), Counter()
    for _ in range(3000):
        agree(gap_document(draw), seen)
    assert min(seen.values()) > 300


@pytest.mark.parametrize("edge", READ_EDGES, ids=lambda edge: f"{edge.file}: {edge.rule}")
def test_what_is_just_allowed_both_read_and_what_is_not_both_refuse(edge):
    agree(edge.true[0], seen := Counter())
    agree(edge.false[0], seen)
    assert (seen[True], seen[False]) == (1, 1)
    refusal = read(json.dumps(edge.false[0]))[1]
    assert edge.says in refusal
    assert refusal.startswith(("schedule", "cluster", "strategy", "failure_plan")), "it names the place"
    assert "None" not in refusal


def test_the_checker_alone_reads_a_gap_of_2_20_workers_at_most():
    assert read(json.dumps(gap(n=2**20)))[0] is not None
    assert read(json.dumps(gap(n=2**20 + 1)))[1] == "strategy.sync.iteration_gap: over 1048576 workers"


def factors_over(bits):
    """Factors of coprime odd denominators, whose product has so many bits."""
    product, denominators = 1, []
    for prime in sympy.primerange(3, 500):
        power = prime ** int(64 / math.log10(prime))
        if (product * power).bit_length() > bits:
            break
        product *= power
        denominators.append(power)
    denominators.append(sympy.prevprime(2**bits // product))
    return [f"1/{denominator}" for denominator in denominators]


@pytest.mark.parametrize(
    ("place", "of"),
    [
        ("phases", lambda factors: groups(2 * len(factors), [([2 * i, 2 * i + 1], f) for i, f in enumerate(factors)])),
        ("phases", lambda factors: rule([2], len(factors), [([i], [0], f) for i, f in enumerate(factors)])),
        ("rounds", lambda factors: graph(len(factors) + 1, [(i, i + 1, f) for i, f in enumerate(factors)])),
    ],
    ids=["groups", "blocks", "edges"],
)
def test_the_checker_alone_reads_common_denominators_of_2_14_bits_at_most(place, of):
    refusal = f"strategy.{place}[0]: the common denominator has over 16384 bits"
    assert read(json.dumps(of(factors_over(2**14))))[1] == ""
    assert read(json.dumps(of(factors_over(2**14 + 1)))) == (None, refusal)


@pytest.mark.parametrize(
    ("relaxation", "reads"),
    [
        ("3/2", True), ("03/2", False), ("3/02", False), ("6/4", True), ("-0", True), ("-00", False), ("3/0", False),
        ("+3/2", False), (" 3/2", False), ("3/-2", False), ("9" * 64, True), ("9" * 65, False), ("0/7", True),
        ("\u0663/2", False), ("3/2\n", False), ("", False), ("1.5", False),
    ],
)  # fmt: skip
def test_a_fraction_has_no_other_spelling_for_one_than_for_the_other(relaxation, reads):
    raw = dump_schedule(SCHEDULES["explicit"])
    raw["strategy"]["phases"][0][0]["relaxation"] = relaxation
    agree(raw, seen := Counter())
    assert seen[reads] == 1


def nested(depth):
    """So many objects in one another."""
    return '{"x":' * (depth - 1) + "{}" + "}" * (depth - 1)


@pytest.mark.parametrize(
    ("member", "reads"),
    [
        (nested(31), True), (nested(32), False), (nested(900), False), (nested(10**5), False),
        ('{"x":' + "[" * 30 + "]" * 30 + "}", True), ('{"x":' + "[" * 31 + "]" * 31 + "}", False),
        ('{"x":"' + "[{" * 99 + '"}', True), (f'{{"x":{2**53 - 1}}}', True), (f'{{"x":{2**53}}}', False),
        (f'{{"x":-{2**53}}}', False), (f'{{"x":"{2**60}"}}', True), (r'{"x":"\ud83d\ude00"}', True),
        (r'{"x":"\ud83d"}', False), (r'{"\ude00":1}', False), ('{"x":1,"x":1}', False), ('{"x":NaN}', False),
    ],
)  # fmt: skip
def test_a_file_is_json_for_both_or_for_neither(member, reads, tmp_path):
    text = json.dumps(dump_schedule(SCHEDULES["explicit"]))
    text = f'{text[:-1]}, "certificate": {member}}}'
    (path := tmp_path / "schedule.json").write_text(text)
    assert (loaded(text)[0] is not None) == reads
    if not reads:
        with pytest.raises(checker.Refusal):
            read_file(str(path), is_certificate=False)
        return
    assert checker.read_schedule(read_file(str(path), is_certificate=False)).sha256 == loaded(text)[0]


@pytest.mark.parametrize(("depth", "says"), [(32, ""), (33, "is nested deeper than 32 levels"), (900, "32 levels")])
def test_a_certificate_is_nested_32_deep_at_most(depth, says, tmp_path):
    (path := tmp_path / "certificate.json").write_text(nested(depth))
    if not says:
        assert read_file(str(path), is_certificate=True) == json.loads(nested(depth))
        return
    with pytest.raises(checker.Refusal, match=says):
        read_file(str(path), is_certificate=True)


@pytest.mark.parametrize(
    ("relaxation", "reads"), [(2**53 - 1, True), (2**53, False), (1 - 2**53, True), (-(2**53), False)]
)
def test_an_integer_that_others_would_round_is_refused(relaxation, reads):
    raw = dump_schedule(SCHEDULES["explicit"])
    raw["strategy"]["phases"][0][0]["relaxation"] = relaxation
    agree(raw, seen := Counter())
    assert seen[reads] == 1
