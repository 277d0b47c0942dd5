"""Table placements as values: documents, row owners, and schedules that reject them."""

import json
import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.readings import agree, document, refusal
from partreduce import Cluster, Schedule
from partreduce.errors import DocumentError, ScheduleError
from partreduce.files import dump_schedule, parse_schedule, schedule_sha256
from partreduce.strategies import Pairwise, PartialAllReduce, Payload, Pipeline, Placement, Server, TablePlacement
from partreduce.topo.codec_numbers import row_bytes
from partreduce.topo.document.canonical import canonical_bytes
from partreduce.topo.document.writer import schedule_text
from partreduce.topo.strategies import AllReduce, Codec, DelayedAveraging, DynamicGroups, Gradient
from partreduce.verify import checker

CLUSTER = Cluster.regular(2, 2)
WORDS = {"parameter": "words.weight", "rows": 10, "columns": 4}


def table_document(payload):
    return document({"kind": "allreduce", "payload": payload})


@st.composite
def payloads(draw, num_workers):
    names = draw(st.lists(st.text(min_size=1, max_size=5), max_size=4, unique=True))
    tables = []
    for name in names:
        way, rows = draw(st.sampled_from(Placement)), draw(st.integers(1, 60))
        own = {}
        if way is Placement.SHARDED:
            hosts = draw(st.lists(st.integers(0, num_workers - 1), unique=True))
            least = len(hosts) or num_workers
            own = {"hosts": tuple(hosts)}
            own["partitions"] = draw(st.none() | st.integers(least, rows)) if least <= rows else None
        gradient = draw(st.sampled_from(Gradient)) if way is not Placement.DENSE else Gradient.DENSE
        columns = draw(st.integers(1, 9))
        codec = (
            Codec.NONE if way is Placement.DENSE else draw(st.sampled_from(list(Codec)[:-1]))
        )  # int4 is for all-reduce only
        tables.append(
            TablePlacement(parameter=name, rows=rows, columns=columns, way=way, gradient=gradient, codec=codec, **own)
        )
    names = ("local_aggregation", "average", "average_dense") if tables else ()
    settings_ = {name: draw(st.booleans()) for name in names}
    return Payload(tables=tuple(tables), **settings_)


@settings(max_examples=60)
@given(payloads(4))
def test_tables_round_trip_and_the_checker_agrees(payload):
    schedule = Schedule("s", CLUSTER, AllReduce(payload=payload))
    loaded = parse_schedule(schedule_text(schedule).encode())
    assert loaded == schedule
    assert parse_schedule(canonical_bytes(schedule)) == schedule
    full = table_document(
        {"local_aggregation": payload.local_aggregation, "average": payload.average,
            "average_dense": payload.average_dense,
            "tables": [{"parameter": route.parameter, "rows": route.rows, "columns": route.columns}
            | {"way": route.way.value, "gradient": route.gradient.value} | {"hosts": list(route.hosts),
            "partitions": route.partitions, "codec": route.codec.value} for route in payload.tables]},
    )  # fmt: skip
    assert schedule_sha256(parse_schedule(json.dumps(full))) == schedule_sha256(schedule)
    assert agree(full)
    read = checker.read_schedule(dump_schedule(schedule))
    assert read.sha256 == schedule_sha256(schedule)
    for route, table in zip(payload.tables, read.tables, strict=True):
        assert table.row_bytes == row_bytes(route.codec.value, route.columns)
        owners = [table.hosts[row % table.partitions % len(table.hosts)] for row in range(route.rows)]
        assert owners == [payload.owner(route, row, 4) for row in range(route.rows)]


def test_schedule_without_tables_writes_none_and_keeps_its_hash():
    plain = Schedule("s", CLUSTER, AllReduce())
    assert not plain.routes
    assert "payload" not in dump_schedule(plain)["strategy"]
    assert schedule_sha256(parse_schedule(json.dumps(table_document({"tables": []})))) == schedule_sha256(plain)


def test_placement_and_owner_lookup():
    words = TablePlacement(parameter="words.weight", rows=10, columns=4, hosts=(3, 1), partitions=5)
    tags = TablePlacement(parameter="tags.weight", rows=3, columns=4, way=Placement.GATHER)
    schedule = Schedule("s", CLUSTER, AllReduce(payload=Payload(tables=(words, tags))))
    assert schedule.route_of("words.weight") is words
    assert schedule.route_of("dense.weight") is None
    assert [schedule.owner_of("words.weight", row) for row in range(6)] == [3, 1, 3, 1, 3, 3]
    assert schedule.owner_of("tags.weight", 0) is None
    assert schedule.routes.apart == (words, tags)


@pytest.mark.parametrize(("payload", "words"), [
    ({"table": []}, 'strategy.payload: has the unknown key "table"; did you mean "tables"?'),
    ({"tables": [{}]}, 'strategy.payload.tables[0]: the key "parameter" is missing'),
    ({"tables": [WORDS | {"row": 1}]}, 'strategy.payload.tables[0]: has the unknown key "row"; did you mean "rows"?'),
    ({"tables": [WORDS | {"parameter": ""}]}, "strategy.payload.tables[0].parameter: is"),
    ({"tables": [WORDS, WORDS]}, "strategy.payload.tables[1].parameter: is 'words.weight', as in tables[0]"),
    ({"tables": [WORDS | {"hosts": [4]}]}, "strategy.payload.tables[0].hosts: has 4; workers are 0..3"),
    ({"tables": [WORDS | {"hosts": [1, 1]}]}, "strategy.payload.tables[0].hosts: has a worker twice"),
    ({"tables": [WORDS | {"partitions": 3}]}, "partitions: is 3; at least one for each of 4 hosts"),
    ({"tables": [WORDS | {"partitions": 11}]}, "and at most one for each of 10 rows"),
    ({"tables": [WORDS | {"way": "gather", "hosts": [1]}]}, "way gather has no hosts and no partitions"),
    ({"tables": [WORDS | {"way": "dense", "gradient": "sparse"}]}, "strategy.payload.tables[0].gradient: is sparse"),
    ({"tables": [WORDS | {"way": "dense", "codec": "int8"}]}, "strategy.payload.tables[0].codec: is int8; way dense"),
    ({"average": False}, "strategy.payload.average: is false; there is no table that it could be for"),
    ({"tables": [WORDS | {"codec": "int4"}]}, "strategy.payload.tables[0].codec: is int4, which is for sums"),
], ids=str)  # fmt: skip
def test_invalid_tables_are_rejected_with_their_place(payload, words):
    with pytest.raises(DocumentError) as caught:
        parse_schedule(json.dumps(table_document(payload)))
    assert words in str(caught.value)
    assert not agree(table_document(payload))
    text = refusal(table_document(payload))
    assert text is None or text.startswith("strategy.payload")


ODD_VALUES = (
    None, True, False, 0, 1, 3, 4, 5, 10, 11, -1, 2.5, 2**31, "", "x", "gather", "dense", "sparse", "int8", [], [1], {},
)  # fmt: skip
MEMBERS = ("parameter", "rows", "columns", "way", "gradient", "hosts", "partitions", "codec")


def test_checker_accepts_exactly_the_loadable_tables():
    """Put odd values in the place of one member, or of two."""
    draw, taken = random.Random(3), 0
    base = {**WORDS, "way": "sharded", "gradient": "dense", "hosts": [3, 1], "partitions": 5, "codec": "float16"}
    tables = [{**one, name: odd} for one in (base, WORDS) for name in MEMBERS for odd in ODD_VALUES]
    for _ in range(150):
        (first, second), odds = draw.sample(MEMBERS, 2), draw.choices(ODD_VALUES, k=2)
        tables.append({**draw.choice([base, WORDS]), first: odds[0], second: odds[1]})
    payloads = [{"tables": [table]} for table in tables]
    payloads += [{"tables": some, name: odd} for some in ([], [base]) for odd in ODD_VALUES
              for name in ("local_aggregation", "average", "average_dense")]  # fmt: skip
    for payload in (*payloads, {}, {"tables": [base, {**base, "parameter": "tags"}]}):
        taken += agree(table_document(payload))
    assert taken > 50


@pytest.mark.parametrize(("strategy", "reason"), [
    (DynamicGroups(group_size=2), "workers of strategy 'dynamic_groups' have no common steps"),
    (Pairwise(active=(0,)), "workers of strategy 'pairwise' have no common steps"),
    (Server(synchronous=False), "only where it is synchronous, with steps_per_round 1"),
    (Server(steps_per_round=2), "only where it is synchronous, with steps_per_round 1"),
    (AllReduce(sync=PartialAllReduce(quorum=2)), "workers with sync.partial have no common steps"),
    (AllReduce(steps_per_round=(1, 1, 1, 2)),
        "workers with unequal steps_per_round have no common steps; give one number for all"),
], ids=str)  # fmt: skip
def test_tables_need_common_steps(strategy, reason):
    with pytest.raises(ScheduleError, match=reason) as caught:
        Schedule("s", CLUSTER, replace(strategy, payload=Payload(tables=(TablePlacement(**WORDS),))))
    assert str(caught.value).startswith(
        "payload.tables: a table's rows are exchanged in every step, synchronously, and "
    )


@pytest.mark.parametrize("strategy", [
    AllReduce(steps_per_round=2), AllReduce(sync=Pipeline()), AllReduce(sync=DelayedAveraging(), steps_per_round=2),
], ids=str)  # fmt: skip
def test_average_dense_false_needs_synchronous_gradients(strategy):
    payload = Payload(tables=(TablePlacement(**WORDS),), average_dense=False)
    with pytest.raises(ScheduleError, match=r"payload\.average_dense: is false; only gradients of all workers"):
        Schedule("s", CLUSTER, replace(strategy, payload=payload))


@pytest.mark.parametrize("strategy", [
    AllReduce(), AllReduce(steps_per_round=(3, 3, 3, 3)), AllReduce(sync=DelayedAveraging()),
    AllReduce(sync=Pipeline()), Server(),
], ids=str)  # fmt: skip
def test_tables_are_valid_with_any_common_steps(strategy):
    payload = Payload(tables=(TablePlacement(**WORDS),))
    schedule = Schedule("s", CLUSTER, replace(strategy, payload=payload))
    assert parse_schedule(schedule_text(schedule).encode()).routes == payload
