"""Checker and loader accept the same documents, with the same canonical hash."""

import json
import math
import random
import re
from collections import Counter

import pytest
import sympy

from benchmarks.forgery.campaign import donors
from benchmarks.forgery.mutations import fresh, mutate
from benchmarks.forgery.schedules import SCHEDULES
from helpers.edges import document, graph, groups, rule
from helpers.read_edges import READ_EDGES, gap, plan
from helpers.readings import agree, refusal, written
from helpers.refusals import check_error
from partreduce import PartreduceError
from partreduce.files import dump_schedule, parse_schedule, schedule_sha256
from partreduce.verify import checker
from partreduce.verify.checker.schema import SCHEMA, WORDS
from partreduce.verify.checker.strict_json import read_file


@pytest.mark.parametrize("documents", [400, pytest.param(2500, marks=pytest.mark.slow)])
def test_loader_and_checker_agree_on_corrupted_documents(documents):
    draw, seen = random.Random("documents"), Counter()
    raws = {name: dump_schedule(schedule) for name, schedule in SCHEDULES.items()}
    while seen.total() < documents:
        raw = fresh(draw.choice(list(raws.values())))
        whole = raw if draw.random() < 0.5 else {name: raw[name] for name in ("strategy", "cluster")}
        for _ in range(draw.choice((1, 1, 2, 3))):
            mutate(draw, whole, donors())
        seen[agree(raw)] += 1
    assert min(seen.values()) > documents / 5


def gap_document(draw):
    """Return a weighted graph with random iteration-gap settings."""
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


@pytest.mark.parametrize("documents", [400, pytest.param(3000, marks=pytest.mark.slow)])
def test_loader_and_checker_agree_on_random_gap_documents(documents):
    draw = random.Random("gaps")
    seen = Counter(agree(gap_document(draw)) for _ in range(documents))
    assert min(seen.values()) > documents / 10


@pytest.mark.parametrize("edge", READ_EDGES, ids=lambda edge: f"{edge.file}: {edge.rule}")
def test_loader_and_checker_agree_on_boundary_values(edge):
    assert agree(edge.true[0])
    assert not agree(edge.false[0])
    message = refusal(edge.false[0])
    assert edge.says in message
    assert message.startswith(("schedule", "cluster", "strategy", "failure_plan")), "the refusal names the place"
    assert "None" not in message


def schedule_with(**strategy):
    """Return a schedule with these strategy members."""
    return written(document(4, 2, **strategy))


TABLE = {"parameter": "t", "rows": 9, "columns": 2, "gradient": "sparse", "hosts": [3, 1], "partitions": 4}
WHOLE = (
    schedule_with(kind="allreduce", steps_per_round=3, averaging="step-normalized", sync={"delay": 1}),
    schedule_with(kind="allreduce", steps_per_round=9, sync={"merge": {"steps": 2, "alpha": "1/3"}},
        payload={"fragments": 2, "outer": {"lr": "1/2", "momentum": "1/3", "nesterov": True}}),
    schedule_with(kind="allreduce", sync={"pipeline": {"width": 3, "warm_up": 2, "drain": "drop", "total": "sum"}},
        transport={"algorithm": "hierarchical", "codec": "int8", "where": "across-nodes", "block": 64,
                   "gradient_buckets": "per_layer", "error_feedback": True}),
    schedule_with(kind="allreduce", payload={"local_aggregation": False, "average": False, "average_dense": False,
        "tables": [{**TABLE, "codec": "float16"}, {"parameter": "u", "rows": 9, "columns": 2, "way": "gather"}]}),
    schedule_with(kind="allreduce", sync={"partial": {"quorum": 3, "count": "call", "staleness": 2, "grace": 1}}),
    schedule_with(kind="allreduce", sync={"partial": {"quorum": "majority", "missed": "latest", "seed": 1,
        "synchronize_every": 3}}),
    schedule_with(kind="allreduce", steps_per_round=4, payload={"fragments": [["a"], ["b", "c"]]}),
    plan(schedule_with(kind="static", prologue=1, steps_per_round=[*[1] * 7, 2],
        phases=[[{"group": [0, 1], "relaxation": "1/2"}, {"group": [2, 3]}], {"phase": [], "repeat": 3}])),
    plan(schedule_with(kind="static", node_radices=[2, 2], phases=[[{"local": [0], "across": [0, 1],
        "relaxation": "4/3"}]]), rule="reapply_rule"),
    schedule_with(kind="static", phases=[[{"group": [0, 1]}]],
        payload={"outer": {"lr": "1/2", "outer_params": "per_worker"}}),
    schedule_with(kind="neighbor", rounds=[{"edges": [[1, 0], [0, 1]], "weights": ["1/4", "1/3"]}]),
    schedule_with(kind="neighbor", rounds=[{"edges": [[1, 0], [0, 1]], "weights": "1/4"}],
        sync={"iteration_gap": {"max_ig": 4, "staleness": 3, "backup": [1, 1, *[0] * 6], "weights": "uniform",
            "skip": {"limit": 4, "trigger": 3, "behind": 3}, "update_order": "dpsgd"}}),
    schedule_with(kind="neighbor", rounds=[{"edges": [[1, 0], [0, 1]], "weights": "1/4"}],
        sync={"iteration_gap": {"max_ig": 4, "notify_ack": True}}),
    {**schedule_with(kind="allreduce"), "cluster": {"nodes": [[0, 2], [1]]}, "certificate": {"x": 1}},
)  # fmt: skip
"""Schedules that together contain every member the checker reads."""


def forms(schema):
    """Return the alternatives of a schema with references resolved."""
    if "$ref" in schema:
        return forms(SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]])
    listed = schema.get("anyOf", schema.get("oneOf"))
    return [schema] if listed is None else [form for one in listed for form in forms(one)]


def boundary_values(schema):
    """Yield boundary values of a schema from both sides, and values of other types."""
    yield from (None, True, 0, 1, "x", "3/2", "4/2", "03/2", "", 1.5, [], {}, [[]], {"x": 1})
    for form in forms(schema):
        yield from form.get("enum", [form["const"]] if "const" in form else [])
        if "minimum" in form:
            yield from (form["minimum"] - 1, form["minimum"], form["maximum"], form["maximum"] + 1)
        if "maxLength" in form:
            yield from ("x" * form["maxLength"], "x" * (form["maxLength"] + 1))


def changes(value, schema, at=""):
    """Yield (place, value changed there) for every schema constraint, and for the first item of every list."""
    yield from ((at, other) for other in boundary_values(schema))
    if "default" in schema:
        yield at, schema["default"]
    options = [form for form in forms(schema) if isinstance(value, dict) and "properties" in form]
    for form in options[:1] if len(options) == 1 else [form for form in options if matches_form(value, form)][:1]:
        yield from ((f"{at}.{name}", {k: v for k, v in value.items() if k != name}) for name in value)
        yield at, value | {"more": 1}
        for name, part in form["properties"].items():
            for place, other in changes(value.get(name), part, f"{at}.{name}"):
                yield place, value | {name: other}
    for form in forms(schema) if isinstance(value, list) and value else ():
        for place, other in changes(value[0], form["items"], f"{at}[0]") if "items" in form else ():
            yield place, [other, *value[1:]]


KINDS = ("static", "allreduce", "neighbor")
READ = {
    **SCHEMA,
    "properties": SCHEMA["properties"] | {"strategy": {"anyOf": [
        form for form in SCHEMA["properties"]["strategy"]["anyOf"] if form["properties"]["kind"]["const"] in KINDS
    ]}},
}  # fmt: skip
"""The schema without the kinds that form groups at run time."""


def matches_form(value, form):
    words = {name: part["const"] for name, part in form["properties"].items() if "const" in part}
    return set(form.get("required", ())) <= set(value) and words.items() <= value.items()


@pytest.mark.parametrize("number", range(len(WHOLE)))
def test_schema_loader_and_checker_agree_on_every_member(number):
    raw, read = WHOLE[number], 0
    assert agree(raw)
    assert refusal(raw) is None
    for _, other in changes(raw, READ):
        if isinstance(other, dict) and isinstance(other.get("strategy"), dict):
            read += agree(other) if other["strategy"].get("kind") in KINDS else refusal(other) is None
        else:
            assert refusal(other) is not None
    assert read > 20


def test_mutations_cover_every_schema_member():
    """All members of closed objects, items of lists and words of enumerations are mutated."""
    places = {re.sub(r"\[0\]", "[]", place) for raw in WHOLE for place, _ in changes(raw, READ)}
    for form in forms(READ["properties"]["strategy"]):
        assert {f".strategy.{name}" for name in form["properties"]} <= places
    for name in ("OuterStep", "TablePlacement", "Transport", "SkipPolicy", "FailurePlan", "Payload"):
        for member in SCHEMA["$defs"][name]["properties"]:
            assert any(place.endswith(f".{member}") for place in places), (name, member)
    for form in SCHEMA["$defs"]["Sync"]["anyOf"]:
        for word, part in form.get("properties", {}).items():
            for member in part.get("properties", ()):
                assert f".strategy.sync.{word}.{member}" in places


def test_interpreter_supports_every_schema_keyword():
    known = {"$ref", "$defs", "$schema", "additionalProperties", "anyOf", "const", "default", "description", "enum",
             "items", "maxItems", "maxLength", "maximum", "minItems", "minLength", "minimum", "oneOf", "pattern",
             "properties", "required", "title", "type"}  # fmt: skip

    def words(schema):
        for name, part in schema.items():
            yield name
            if name in ("properties", "$defs"):
                yield from (word for one in part.values() for word in words(one))
            elif name in ("anyOf", "oneOf"):
                yield from (word for one in part for word in words(one))
            elif name == "items":
                yield from words(part)
            assert name != "additionalProperties" or part is False or schema["type"] == "object"
            assert name != "type" or part in WORDS

    assert set(words(READ)) <= known


def test_errors_in_nested_lists_report_the_path():
    raw = groups(6, [[0, 1], [2, 3]], [[0, 1], [2, "x"]])
    assert refusal(raw) == "strategy.phases[1][1].group[1]: must be an integer 0..2147483647"
    raw["strategy"]["phases"][1][1] = {"group": [2, 3], "relaxed": 1}
    assert refusal(raw) == "strategy.phases[1][1]: has unknown keys ['relaxed']"


NOT_CANONICAL = {
    "a member that is its default": (groups(3, [[0, 1]], prologue=0), "strategy.prologue: is the default"),
    "groups that do not ascend": (groups(4, [[2, 3], [0, 1]]), "strategy.phases[0]: groups stand in ascending order"),
    "ranks that do not ascend": (groups(3, [[1, 0]]), "strategy.phases[0]: the numbers of a list ascend"),
    "blocks that do not ascend": (rule([2], 2, [([1], [0]), ([0], [0])]), "groups stand in ascending order"),
    "edges that do not ascend": (document(3, 1, kind="neighbor", rounds=[{"edges": [[0, 2], [0, 1]], "weights": 1}]),
        "strategy.rounds[0]: edges ascend by target"),
    "weights that are one": (document(3, 1, kind="neighbor", rounds=[{"edges": [[0, 1], [0, 2]], "weights": [1, 1]}]),
        "equal weights are one"),
    "a fraction that can be shortened": (groups(2, [([0, 1], "2/4")]), "strategy.phases[0]: 2/4 is not in lowest"),
    "a rate that can be shortened": (document(2, 1, kind="allreduce", payload={"outer": {"lr": "2/4"}}),
        "strategy.payload.outer.lr: 2/4 is not in lowest"),
    "a share that can be shortened": (document(2, 1, kind="allreduce", sync={"merge": {"alpha": "2/4"}}),
        "strategy.sync.merge.alpha: 2/4 is not in lowest"),
    "steps that all have": (groups(2, [[0, 1]], steps_per_round=[2, 2]), "strategy.steps_per_round: equal numbers"),
    "regular nodes": ({**groups(2, [[0, 1]]), "cluster": {"nodes": [[0], [1]]}}, "cluster.nodes: num_nodes and"),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_CANONICAL)
def test_non_canonical_form_is_refused_with_export_hint(name):
    raw, says = NOT_CANONICAL[name]
    assert agree(raw)
    assert says in refusal(raw)
    assert refusal(raw).endswith(
        "`partreduce verify FILE --export NEW` writes a file in the one form that is read here"
    )
    assert refusal(written(raw)) is None


def test_type_error_lists_every_allowed_type():
    assert refusal(groups(2, [[0, 1]], steps_per_round="2")) == (
        "strategy.steps_per_round: must be an integer or a list"
    )


def test_checker_limits_gap_graphs_to_2_20_workers():
    assert refusal(gap(n=2**20)) is None
    assert refusal(gap(n=2**20 + 1)) == "strategy.sync.iteration_gap: over 1048576 workers"


def factors_over(bits):
    """Return factors with coprime odd denominators whose product has `bits` bits."""
    product, denominators = 1, []
    for prime in sympy.primerange(3, 500):
        power = prime ** int(64 / math.log10(prime))
        if (product * power).bit_length() > bits:
            break
        product *= power
        denominators.append(power)
    denominators.append(sympy.prevprime(2**bits // product))
    return [f"1/{denominator}" for denominator in denominators]


@pytest.mark.parametrize(("place", "of"), [
    ("phases", lambda factors: groups(2 * len(factors), [([2 * i, 2 * i + 1], f) for i, f in enumerate(factors)])),
    ("phases", lambda factors: rule([2], len(factors), [([i], [0], f) for i, f in enumerate(factors)])),
    ("rounds", lambda factors: graph(len(factors) + 1, [(i, i + 1, f) for i, f in enumerate(factors)])),
], ids=["groups", "blocks", "edges"])  # fmt: skip
def test_checker_limits_common_denominators_to_2_14_bits(place, of):
    says = f"strategy.{place}[0]: the common denominator has over 16384 bits"
    assert refusal(of(factors_over(2**14))) is None
    assert refusal(of(factors_over(2**14 + 1))) == says


@pytest.mark.parametrize(("relaxation", "reads"), [
    ("3/2", True), ("03/2", False), ("3/02", False), ("6/4", True), ("-0", True), ("-00", False), ("3/0", False),
    ("+3/2", False), (" 3/2", False), ("3/-2", False), ("9" * 64, True), ("9" * 65, False), ("0/7", True),
    ("\u0663/2", False), ("3/2\n", False), ("", False), ("1.5", False),
])  # fmt: skip
def test_loader_and_checker_agree_on_fraction_syntax(relaxation, reads):
    raw = dump_schedule(SCHEDULES["explicit"])
    raw["strategy"]["phases"][0][0]["relaxation"] = relaxation
    assert agree(raw) == reads


def nest(depth):
    """Return `depth` nested objects."""
    return '{"x":' * (depth - 1) + "{}" + "}" * (depth - 1)


@pytest.mark.parametrize(("member", "reads"), [
    (nest(31), True), (nest(32), False), (nest(900), False), (nest(10**5), False),
    ('{"x":' + "[" * 30 + "]" * 30 + "}", True), ('{"x":' + "[" * 31 + "]" * 31 + "}", False),
    ('{"x":"' + "[{" * 99 + '"}', True), (f'{{"x":{2**53 - 1}}}', True), (f'{{"x":{2**53}}}', False),
    (f'{{"x":-{2**53}}}', False), (f'{{"x":"{2**60}"}}', True), (r'{"x":"\ud83d\ude00"}', True),
    (r'{"x":"\ud83d"}', False), (r'{"\ude00":1}', False), ('{"x":1,"x":1}', False), ('{"x":NaN}', False),
])  # fmt: skip
def test_loader_and_checker_agree_on_json_syntax(member, reads, tmp_path):
    text = json.dumps(dump_schedule(SCHEDULES["explicit"]))
    text = f'{text[:-1]}, "certificate": {member}}}'
    (path := tmp_path / "schedule.json").write_text(text)
    if not reads:
        with pytest.raises(PartreduceError):
            parse_schedule(text)
        with pytest.raises(checker.Refusal):
            read_file(str(path), is_certificate=False)
        return
    assert checker.read_schedule(read_file(str(path), is_certificate=False)).sha256 == schedule_sha256(
        parse_schedule(text)
    )


@pytest.mark.parametrize(("depth", "says"), [(32, ""), (33, "is nested deeper than 32 levels"), (900, "32 levels")])
def test_certificates_nest_at_most_32_levels(depth, says, tmp_path):
    (path := tmp_path / "certificate.json").write_text(nest(depth))
    if not says:
        assert read_file(str(path), is_certificate=True) == json.loads(nest(depth))
        return
    check_error(checker.Refusal, says, read_file, str(path), is_certificate=True)


@pytest.mark.parametrize(
    ("relaxation", "reads"), [(2**53 - 1, True), (2**53, False), (1 - 2**53, True), (-(2**53), False)]
)
def test_integers_beyond_2_53_are_refused(relaxation, reads):
    raw = dump_schedule(SCHEDULES["explicit"])
    raw["strategy"]["phases"][0][0]["relaxation"] = relaxation
    assert agree(raw) == reads
