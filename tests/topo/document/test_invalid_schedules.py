"""Invalid schedule files: each raises one DocumentError of one line with its place, quickly."""

import copy
import json
import os
import pickle
import socket

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.readings import with_change
from helpers.refusals import check_error
from partreduce import load_schedule
from partreduce.errors import DocumentError, FileError, InputError, ScheduleError
from partreduce.files import parse_schedule
from partreduce.topo.document.reader import parse_json, read_json

RULE = {
    "format": "partreduce.schedule",
    "version": 1,
    "name": "prague-figure-10",
    "cluster": {"num_nodes": 4, "workers_per_node": 4},
    "strategy": {"kind": "static", "node_radices": [2, 2],
        "phases": [[{"local": [0], "across": [0, 1]}, {"local": [2, 3], "across": []}],
        [{"local": [0, 3], "across": []}, {"local": [1], "across": [0]}]]},
}  # fmt: skip
GROUPS = {
    "format": "partreduce.schedule",
    "version": 1,
    "name": "größer \U0001f600",
    "cluster": {"nodes": [[0, 2], [1, 3]]},
    "strategy": {"kind": "static", "steps_per_round": [1, 2, 1, 1],
        "phases": [[{"group": [3, 1], "relaxation": "4/3"}, {"group": [2, 0]}], []]},
    "certificate": {"note": 'a "quoted" [bracket'},
}  # fmt: skip
NEIGHBOR = {
    "format": "partreduce.schedule",
    "version": 1,
    "name": "ring",
    "cluster": {"num_nodes": 3, "workers_per_node": 1},
    "strategy": {"kind": "neighbor", "sync": {"delay": 1},
        "rounds": [{"edges": [[0, 1], [1, 2], [2, 0]], "weights": ["1/2", "1/2", "1/3"]}]},
}  # fmt: skip
KEEP = {"rule": "keep_groups", "failures": 1}
UNEVEN = GROUPS | {
    "cluster": {"nodes": [[1], [2], [0, 3], [4]]},
    "strategy": {"kind": "static", "phases": [[{"group": [0, 3, 4]}], [{"group": [0, 1, 2]}]]},
}
PAIR = UNEVEN | {"cluster": {"nodes": [[1], [0]]}, "strategy": {"kind": "allreduce"}}
LATE_LAYERS = {"kind": "allreduce", "sync": {"pipeline": {}}, "transport": {"gradient_buckets": "per_layer"}}
OVERLAPPING = [{"group": [0, 1]}, {"group": [1, 2]}]
SYNCS = (
    'it must be "synchronous", {"delay": 1}, {"merge": {"steps": 2}}, {"pipeline": {}}, {"iteration_gap": {}} or '
    '{"partial": {"quorum": "solo"}}'
)
GOOD = {"rule": RULE, "groups": GROUPS, "neighbor": NEIGHBOR}


def text_of(raw):
    return json.dumps(raw).encode()


def edit(*change):
    return text_of(with_change(*change))


def error_of(data, **limits):
    """Return the error of an invalid document, after checking the properties of every such error."""
    with pytest.raises(DocumentError) as caught:
        parse_schedule(data, **limits)
    error = caught.value
    assert error.exit_code == 65
    assert error.place
    assert str(error) == f"{error.place}: {error.problem}"
    assert str(error).isprintable()
    assert len(str(error)) < 400
    return error


@pytest.mark.parametrize("base", GOOD.values(), ids=GOOD)
def test_good_documents_load(base):
    assert parse_schedule(text_of(base)).name == base["name"]


def test_document_is_text_or_bytes(tmp_path):
    text = json.dumps(RULE | {"name": "Größe"}, ensure_ascii=False)
    for document in (text, text.encode(), bytearray(text.encode())):
        assert parse_schedule(document) == parse_schedule(text)
        assert parse_schedule(document).name == "Größe"
    assert "is not UTF-8" in error_of(text.replace("ö", "\ud800")).problem
    assert "the limit is" in error_of(text, max_bytes=len(text.encode()) - 1).problem
    for wrong in (RULE, tmp_path / "schedule.json", None):
        with pytest.raises(InputError, match=r"^parse_schedule: the document is a \w+; it must be str or bytes; load_"):
            parse_schedule(wrong)


@pytest.mark.parametrize("ensure_ascii", [True, False])
@pytest.mark.parametrize("base", GOOD.values(), ids=GOOD)
def test_truncation_at_every_byte_is_rejected(base, ensure_ascii):
    data = json.dumps(base, ensure_ascii=ensure_ascii).encode()
    for length in range(len(data)):
        error = error_of(data[:length])
        line, _, column = error.place.partition(":")
        assert line.isdigit()
        assert column.isdigit()


P0 = ("strategy", "phases", 0)
BROKEN = [
    # (document, place, part of the message)
    (edit(RULE, ["version"], 2), "version", "is 2; this partreduce reads version 1; install a newer"),
    (edit(RULE, ["version"], 0), "version", "is 0"),
    (edit(RULE, ["version"], True), "version", "is true"),
    (edit(RULE, ["version"]), "document", 'the key "version" is missing'),
    (edit(RULE, ["format"], "partreduce.cluster"), "format", 'it must be "partreduce.schedule"'),
    (edit(RULE, ["format"]), "document", 'the key "format" is missing'),
    (edit(RULE, ["name"]), "document", 'the key "name" is missing'),
    (edit(RULE, ["name"], ""), "name", "too short"),
    (edit(RULE, ["name"], "a\nb"), "name", "printable"),
    (edit(RULE, ["name"], "x" * 1001), "name", "at most 1000"),
    (edit(RULE, ["nmae"], "x"), "document", 'has the unknown key "nmae"; did you mean "name"?'),
    (edit(RULE, ["a\x1b[31m\n"], "x"), "document", "has the unknown key"),
    (edit(RULE, ["certificate"], []), "certificate", "must be an object"),
    *(
        (edit(RULE, ["failure_plan"], plan), f"failure_plan{place}", words)
        for plan, place, words in (
            ([], "", "must be an object"),
            ({"rule": "keep_groups"}, "", 'the key "failures" is missing'),
            ({"rule": "remaining", "failures": 1}, ".rule", "keep_groups"),
            ({"rule": "keep_groups", "failures": 0}, ".failures", "must be >= 1"),
            ({"rule": "keep_groups", "failures": 5}, ".failures", "must be <= 4"),
            ({"rule": "keep_groups", "failures": 1, "lost": [0]}, "", 'has the unknown key "lost"'),
        )
    ),
    (edit(RULE, ["failure_plans"], [{"lost": [0]}]), "document", 'has the unknown key "failure_plans"; did'),
    (edit(NEIGHBOR, ["failure_plan"], KEEP), "strategy.kind", "failure plans are for static and"),
    (text_of(RULE | {"strategy": LATE_LAYERS, "failure_plan": KEEP | {"rule": "all_reduce"}}),
        "strategy.transport.gradient_buckets", "no worker keeps late gradients that left by layers"),
    (text_of(RULE | {"strategy": {"kind": "allreduce"}, "failure_plan": KEEP}),
        "failure_plan.rule", "expected all_reduce for strategy allreduce, got keep_groups"),
    (text_of(UNEVEN | {"failure_plan": KEEP | {"rule": "reapply_rule"}}),
        "failure_plan.rule", "expected a schedule with node_radices for reapply_rule, got listed groups"),
    (text_of(UNEVEN | {"strategy": {"kind": "static", "phases": [[], OVERLAPPING]}, "failure_plan": KEEP}),
        "failure_plan.rule",
        "expected groups that share no worker for keep_groups, got two that do in strategy.phases[1]"),
    (text_of(UNEVEN | {"failure_plan": KEEP | {"failures": 4}}),
        "failure_plan.failures", "expected 1 to 3 for 5 workers, got 4"),
    (text_of(PAIR | {"failure_plan": KEEP | {"rule": "all_reduce"}}),
        "failure_plan", "expected a cluster of 3 workers or more, got 2"),
    (edit(RULE, ["cluster"], "4x4"), "cluster", 'is "4x4"; it must be an object'),
    (edit(RULE, ["cluster", "num_nodes"], 0), "cluster.num_nodes", "is 0; it must be >= 1"),
    (edit(RULE, ["cluster", "num_nodes"], 2**40), "cluster.num_nodes", "must be <="),
    (edit(RULE, ["cluster"], {"num_nodes": 2**31 - 1, "workers_per_node": 2}), "cluster", "at most 2147483647"),
    (edit(RULE, ["cluster", "num_nodes"]), "cluster", 'the key "num_nodes" is missing'),
    (edit(RULE, ["cluster", "num_node"], 4), "cluster", 'did you mean "num_nodes"'),
    (edit(RULE, ["cluster", "nodes"], [[0, 1]]), "cluster", 'has both "nodes" and "num_nodes"; keep nodes, or'),
    (edit(RULE, ["cluster"], {"num_nodes": 1, "workers_per_node": 1}), "cluster", "at least 2 workers"),
    (edit(GROUPS, ["cluster", "nodes", 1], []), "cluster.nodes[1]", "too short"),
    (edit(GROUPS, ["cluster", "nodes", 1, 0], 2), "cluster.nodes[1]", "worker 2 is listed twice"),
    (edit(GROUPS, ["cluster", "nodes", 1, 0], 9), "cluster.nodes[1]", "worker 9 is out of range"),
    (edit(RULE, ["strategy", "kind"]), "strategy", 'the key "kind" is missing; known kinds: static'),
    (edit(RULE, ["strategy", "kind"], "statik"), "strategy.kind", 'did you mean "static"?'),
    (edit(RULE, ["strategy", "kind"], ["static"]), "strategy.kind", "must be one of"),
    (edit(RULE, ["strategy", "phasen"], []), "strategy", 'unknown key "phasen"; did you mean "phases"?'),
    (edit(RULE, ["strategy", "phases"]), "strategy", 'the key "phases" is missing'),
    (edit(RULE, ["strategy", "phases"], []), "strategy.phases", "at least 1 phase"),
    (edit(RULE, ["strategy", "phases"], [[]] * (2**18 + 1)), "strategy.phases", "too long; its length is at most"),
    (edit(RULE, P0, {}), "strategy.phases[0]", 'the key "phase" is missing'),
    (edit(RULE, P0, {"phase": [], "repeat": 1}), "strategy.phases[0].repeat", "must be >= 2"),
    (edit(RULE, P0, {"phase": [], "repeat": 2**18}), "strategy.phases", "expected at most 262144"),
    (edit(RULE, [*P0, 1, "local"], []), "strategy.phases[0][1].local", "at least 1 local rank"),
    (edit(RULE, [*P0, 1, "local"], [2, 2]), "strategy.phases[0][1].local", "names a local rank twice"),
    (edit(RULE, [*P0, 1, "local", 0], 4), "strategy.phases[0][1].local", "local rank 4 is out of range"),
    (edit(RULE, [*P0, 1, "local", 0], -1), "strategy.phases[0][1].local[0]", "is -1; it must be >= 0"),
    (edit(RULE, [*P0, 0, "across", 0], 2), "strategy.phases[0][0].across", "digit 2 is out of range"),
    (edit(RULE, ["strategy", "node_radices"], [2, 3]), "strategy", "their product is the number of nodes, 4"),
    (edit(RULE, ["strategy", "node_radices"], [4, 1]), "strategy.node_radices[1]", "is 1; it must be >= 2"),
    (edit(RULE, ["strategy", "node_radices"], [2] * 40), "strategy.node_radices", "at most 31"),
    (edit(RULE, ["strategy", "node_radices"]), "strategy", 'the key "node_radices" is missing'),
    (edit(RULE, ["cluster"], {"nodes": [[0, 1], [2]]}), "strategy", "rules need equally sized nodes"),
    (edit(RULE, ["strategy", "prologue"], -1), "strategy.prologue", "is -1; it must be >= 0"),
    (edit(RULE, ["strategy", "overlap"], True), "strategy", '"overlap" is called "sync" now'),
    (edit(RULE, ["strategy", "sync"], 1), "strategy.sync", f"is 1; {SYNCS}"),
    (edit(RULE, ["strategy", "sync"], {"delay": True}), "strategy.sync.delay", "is true; an averaging is late by 1"),
    (edit(RULE, ["strategy", "sync"], {"delay": 2}), "strategy.sync.delay", "is 2; an averaging is late by 1 round"),
    (edit(RULE, ["strategy", "sync"], {"delay": 1, "iteration_gap": 2}), "strategy.sync", SYNCS),
    (edit(RULE, ["strategy", "transport"], {"algoritm": "ring"}), "strategy.transport",
        'has the unknown key "algoritm"; did you mean "algorithm"?'),
    (edit(RULE, ["strategy", "transport"], {"algorithm": "star"}), "strategy.transport.algorithm",
        "it must be 'ring' or 'hierarchical'"),
    (edit(RULE, ["strategy", "averaging"], "median"), "strategy.averaging", "'mean' or 'step-normalized'"),
    (edit(RULE, ["strategy", "steps_per_round"], 0), "strategy.steps_per_round", "is 0; it must be >= 1"),
    (edit(RULE, ["strategy", "steps_per_round"], "fast"), "strategy.steps_per_round", 'is "fast"; it must be'),
    (edit(GROUPS, ["strategy", "steps_per_round"], [1, 2]), "strategy.steps_per_round", "has 2 entries"),
    (edit(GROUPS, ["strategy", "steps_per_round", 1], True), "strategy.steps_per_round[1]", "is true"),
    (edit(GROUPS, [*P0, 0, "group"], [3]), "strategy.phases[0][0].group", "a group has at least 2 workers"),
    (edit(GROUPS, [*P0, 1, "group", 1], 4), "strategy.phases[0][1].group[1]",
        "rank 4 is out of range; ranks are 0..3"),
    (edit(GROUPS, [*P0, 1, "group", 1], -1), "strategy.phases[0][1].group[1]", "rank -1 is out of range"),
    (edit(GROUPS, [*P0, 1, "group", 1], True), "strategy.phases[0][1].group[1]", "is true; it must be an integer"),
    (edit(GROUPS, [*P0, 1, "group", 1], "0"), "strategy.phases[0][1].group[1]", 'is "0"; it must be an integer'),
    (edit(GROUPS, [*P0, 1, "group"], [0, 1, 0]), "strategy.phases[0][1].group", "worker 0 stands twice"),
    (edit(GROUPS, [*P0, 1, "local"], [0]), "strategy.phases[0][1]", 'unknown key "local"'),
    (edit(GROUPS, [*P0, 0, "relaxation"], 1.5), "strategy.phases[0][0].relaxation", "is 1.5; it must be exact"),
    (edit(GROUPS, [*P0, 0, "relaxation"], "1/0"), "strategy.phases[0][0].relaxation", "no zero below"),
    (edit(GROUPS, [*P0, 0, "relaxation"], " 1/2"), "strategy.phases[0][0].relaxation", "no spaces"),
    (edit(GROUPS, [*P0, 0, "relaxation"], "１/２"), "strategy.phases[0][0].relaxation", "a fraction string"),
    (edit(GROUPS, [*P0, 0, "relaxation"], "1/2\n"), "strategy.phases[0][0].relaxation", "a fraction string"),
    (edit(GROUPS, [*P0, 0, "relaxation"], "1/" + "9" * 65), "strategy.phases[0][0].relaxation", "at most 64 digits"),
    (edit(NEIGHBOR, ["strategy", "rounds"], []), "strategy.rounds", "at least 1 round"),
    (edit(NEIGHBOR, ["strategy", "rounds", 0, "edges", 1], [1, 1]), "strategy.rounds[0].edges[1]", "is 1→1"),
    (edit(NEIGHBOR, ["strategy", "rounds", 0, "edges", 1], [1, 3]), "strategy.rounds[0].edges[1]", "ranks are 0..2"),
    (edit(NEIGHBOR, ["strategy", "rounds", 0, "edges", 2], [0, 1]), "strategy.rounds[0].edges[2]", "given twice"),
    (edit(NEIGHBOR, ["strategy", "rounds", 0, "edges", 1], [1]), "strategy.rounds[0].edges[1]", "at least 2"),
    (edit(NEIGHBOR, ["strategy", "rounds", 0, "weights"], ["1/2"]), "strategy.rounds[0].weights", "1 entries for 3"),
    (edit(NEIGHBOR, ["strategy", "rounds", 0, "weights"], 0.5), "strategy.rounds[0].weights", "must be exact"),
    (edit(NEIGHBOR, ["strategy", "prologue"], 1), "strategy", 'unknown key "prologue"'),
    # invalid JSON
    (b'{"a": {"b": [1, {"c": 1, "d": 2, "c": 3}]}}', "a.b[1]", 'has the key "c" twice'),
    (b'{"a": 1, "\\u0061": 1}', "document", 'has the key "a" twice'),
    (b'{"a": [0, NaN]}', "a[1]", "is NaN; numbers are finite"),
    (b'{"a": [0, Infinity]}', "a[1]", "is Infinity"),
    (b'{"a": [0, 1e400]}', "a[1]", "is 1e400, which overflows"),
    (b'{"a": [0, 9007199254740992]}', "a[1]", "an integer beyond"),
    (b'{"a": [0, -9007199254740992]}', "a[1]", "an integer beyond"),
    (b'{"a": [0, 1' + b"0" * 4000 + b"]}", "a[1]", "an integer beyond"),
    (b'{"a": [0, 1' + b"0" * 6000 + b"]}", "a[1]", "an integer beyond"),
    (b'{"a": [0, 1' + b"0" * 6000 + b".5]}", "a[1]", "overflows"),
    (b'{"a": ["\\ud800"]}', "a[0]", "half of a surrogate pair"),
    (b'{"a": {"\\udc00x": 1}}', "a", "half of a surrogate pair"),
    (b'{"a": {"b c": NaN}}', 'a["b c"]', "is NaN"),
    (b'{"a": {"\\n\\u0007": NaN}}', 'a["\\n\\u0007"]', "is NaN"),
    (b"NaN", "document", "is NaN"),
    (b"3", "document", "must be an object"),
    (b'{"a": 1,}', "1:9", "is not JSON"),
    (b"{'a': 1}", "1:2", "is not JSON"),
    (b'{"a": 01}', "1:8", "is not JSON"),
    (b'{"a": 1} x', "1:10", "is not JSON"),
    (b'{\n "a": \x001}', "2:7", "is not JSON"),
    (b'{"a": "\n"}', "1:8", "is not JSON"),
    (b'{"a": "\\x"}', "1:8", "is not JSON"),
    (b"", "1:1", "is empty"),
    (b" \n\t ", "1:1", "is empty"),
    (b"\xef\xbb\xbf{}", "1:1", "byte-order mark"),
    ("{}".encode("utf-16"), "1:1", "byte-order mark"),
    (b'{\n"a": "\xff"}', "2:7", "is not UTF-8"),
    (b'{"a": "\xed\xa0\x80"}', "1:8", "is not UTF-8"),
    (b'{"a": "\xc0\xaf"}', "1:8", "is not UTF-8"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("data", "place", "words"), BROKEN, ids=lambda value: None if isinstance(value, bytes) else value
)
def test_broken_document_is_rejected_with_its_place(data, place, words):
    error = error_of(data)
    assert error.place == place
    assert words in error.problem


@pytest.mark.parametrize(
    ("item", "words"),
    [(b"NaN", "a value is NaN"), (b"1e999", "overflows"), (b'{"a":1,"a":1}', 'has the key "a" twice')],
)
def test_thousand_faults_are_located_and_more_are_counted(item, words):
    error = error_of(b"[" + item + b"," + b"1," * 10 + b",".join([item] * 999) + b"]")
    assert error.place == "[0]"
    error = error_of(b"[" + b",".join([item] * 10**5) + b"]")
    assert error.place == "document"
    assert "more than 1000 faults" in error.problem
    assert words in error.problem


def test_integers_up_to_the_bound_are_kept_exactly():
    values = [9007199254740991, -9007199254740991, 0, -0, 1234567890123456]
    assert parse_json(json.dumps(values).encode()) == values
    assert parse_json(b"[1e300, 0.1, 1234567890123456.5e-300]") == [1e300, 0.1, 1234567890123456.5e-300]


@pytest.mark.parametrize("depth", [33, 1000, 10**5, 3 * 10**6])
@pytest.mark.parametrize("bracket", [b"[", b'{"a":', b'[{"]":'])
def test_deep_nesting_is_rejected(depth, bracket):
    data = bracket * depth
    error = error_of(data, max_bytes=2**25)
    assert "nested deeper than 32" in error.problem
    count = bracket.count(b"[") + bracket.count(b"{")
    whole, rest = divmod(32, count)
    assert error.place == f"1:{whole * len(bracket) + rest + 1}"


def test_depth_ignores_brackets_in_strings():
    deepest = b"[" * 31 + b'["' + b"[{" * 50 + b'\\"[[[\\\\", "\\\\\\"[[["' + b"]" * 32
    parse_json(deepest)
    check_error(DocumentError, "nested deeper", parse_json, b'["\\\\", ' + deepest + b"]")
    # strings, escapes and brackets across the chunks of the scan
    filler = b'"' + b"\\\\" * (2**19 - 20) + b"[" * 60 + b'"'
    for shift in range(20):
        parse_json(b"[" + b" " * shift + filler + b", 1]")
    check_error(DocumentError, "nested deeper", parse_json, b"[" + filler + b"," + b"[" * 32 + b"]" * 33)


def test_size_limit(tmp_path):
    data = text_of(RULE)
    assert parse_schedule(data, max_bytes=len(data))
    error = error_of(data, max_bytes=len(data) - 1)
    assert f"the limit is {len(data) - 1} bytes; raise the limit" in error.problem
    sparse = tmp_path / "huge.json"
    with sparse.open("wb") as file:
        file.truncate(2**40)
    check_error(DocumentError, f"is {2**40} bytes or more; the limit is {16 * 2**20} bytes", load_schedule, sparse)
    sparse.write_bytes(b"\0" * 100)
    check_error(DocumentError, "is not JSON", load_schedule, sparse)


def test_special_files_are_rejected(tmp_path):
    os.mkfifo(tmp_path / "fifo.json")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "link.json").symlink_to(tmp_path / "fifo.json")
    for name, word in (("fifo.json", "a FIFO"), ("folder.json", "a directory"), ("link.json", "a FIFO")):
        with pytest.raises(DocumentError) as caught:
            load_schedule(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name}: is {word}; a document is a regular file"
    check_error(DocumentError, "is a device", read_json, "/dev/null")


def test_unreadable_files_raise_file_error(tmp_path):
    (tmp_path / "loop.json").symlink_to(tmp_path / "loop.json")
    (tmp_path / "dangling.json").symlink_to(tmp_path / "nowhere")
    for name in ("absent.json", "loop.json", "dangling.json", "nul\0.json", "new\nline.json"):
        with pytest.raises(FileError) as caught:
            load_schedule(tmp_path / name)
        assert caught.value.exit_code == 74
        assert "cannot be opened" in str(caught.value)
        assert str(caught.value).isprintable()
    # A socket cannot be opened either; its path must be short, so it is created through the folder's descriptor.
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(f"/proc/self/fd/{os.open(tmp_path, os.O_RDONLY)}/s")
        with pytest.raises((FileError, DocumentError)):
            load_schedule(tmp_path / "s")


def test_error_starts_with_the_file_name(tmp_path):
    path = tmp_path / "bad.json"
    path.write_bytes(edit(RULE, ["version"], 2))
    with pytest.raises(DocumentError) as caught:
        load_schedule(path)
    assert str(caught.value).startswith(f"{path}: version: is 2;")
    assert (caught.value.source, caught.value.place) == (str(path), "version")
    path.write_bytes(b'{"a": ]')
    check_error(DocumentError, r"bad\.json: 1:7: is not JSON", load_schedule, path)


def test_errors_can_be_pickled():
    error = DocumentError("strategy.phases[0]", "is wrong", "a.json")
    copied = pickle.loads(pickle.dumps(error))
    assert str(copied) == "a.json: strategy.phases[0]: is wrong"
    assert (copied.place, copied.problem, copied.source) == ("strategy.phases[0]", "is wrong", "a.json")


def test_overlapping_and_disconnected_groups_load():
    schedule = parse_schedule(edit(GROUPS, [*P0, 1, "group"], [0, 1]))
    assert [group.members for group in schedule.phase(0)] == [(0, 1), (1, 3)]
    check_error(ScheduleError, "worker 1 stands in 2 groups", schedule.phase(0).labels)
    parse_schedule(edit(RULE, [*P0, 1, "local"], [0, 3]))
    parse_schedule(edit(GROUPS, ["strategy", "phases"], [[{"group": [0, 1]}]]))
    parse_schedule(edit(GROUPS, ["strategy", "phases"], [[]]))


@pytest.mark.parametrize("data", [
    b"[" + b"[]," * (5 * 10**5) + b"1]",
    b"[" + b'{"a":1,"a":1},' * 10**5 + b"1]",
    b"[" + b"1e400," * 3 * 10**5 + b"1]",
    b"[" + b"NaN," * 3 * 10**5 + b"1]",
    b"[" + b"9" * 10**6 + b"]",
    b"[0." + b"9" * 10**6 + b"e999]",
    b'"' + b'\\"' * 10**6,
    b'["' + b"\\ud800" * 10**5 + b'"]',
    b'{"' + b"\\\\" * 10**6 + b'": 1}',
    b"\\" * 10**6,
    edit(GROUPS, [*P0], [{"group": [0]}] * 10**5),
    edit(GROUPS, [*P0], [{"group": [0, 1], f"k{i}": 1} for i in range(10**4)]),
    edit(RULE, [*P0], [{"local": [9], "across": [0]}] * 10**4),
    edit(RULE, ["strategy"], {f"key{i}": i for i in range(10**4)} | {"kind": "static"}),
    edit(RULE, ["strategy", "node_radices"], [2**50] * 10**5),
], ids=range(15))  # fmt: skip
def test_hostile_documents_are_rejected(data):
    error_of(data)


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@pytest.mark.parametrize("examples", [20, pytest.param(150, marks=pytest.mark.slow)])
def test_strict_reader_agrees_with_json_on_clean_documents(examples):
    settings(max_examples=examples)(given(json_values, st.booleans())(check_strict_reader))()


def check_strict_reader(value, ensure_ascii):
    try:
        data = json.dumps(value, ensure_ascii=ensure_ascii).encode()
    except UnicodeEncodeError:  # a lone surrogate cannot be encoded as UTF-8
        return
    if "\\ud" in data.decode() and any("\ud800" <= char <= "\udfff" for char in str(json.loads(data))):
        check_error(DocumentError, "surrogate", parse_json, data)
        return
    assert parse_json(data) == json.loads(data)


@settings(max_examples=90)
@given(st.sampled_from(list(GOOD.values())), st.data())
def test_mutated_documents_load_or_are_rejected_in_one_line(base, data):
    document = copy.deepcopy(base)
    places = []

    def collect(value):
        if isinstance(value, dict | list):
            places.extend((value, key) for key in (value if isinstance(value, dict) else range(len(value))))
            for item in value.values() if isinstance(value, dict) else value:
                collect(item)

    collect(document)
    container, key = data.draw(st.sampled_from(places))
    container[key] = data.draw(json_values)
    text = json.dumps(document).encode()
    try:
        parse_schedule(text)
    except DocumentError:
        error_of(text)


@settings(max_examples=90)
@given(st.sampled_from(list(GOOD.values())), st.data())
def test_damaged_bytes_load_or_are_rejected_in_one_line(base, data):
    text = bytearray(text_of(base))
    for _ in range(data.draw(st.integers(1, 3))):
        index = data.draw(st.integers(0, len(text) - 1))
        piece = data.draw(
            st.one_of(st.binary(max_size=2), st.sampled_from([b"[", b"}", b'"', b"\\", b"-", b"e999", b","]))
        )
        text[index : index + data.draw(st.integers(0, 3))] = piece
    try:
        parse_schedule(bytes(text))
    except DocumentError:
        error_of(bytes(text))
