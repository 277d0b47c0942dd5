"""A phase that repeats is written once with its count; schedule and hash are those of the phases one by one."""

import json
import random

import pytest

from helpers.readings import agree
from partreduce.errors import DocumentError
from partreduce.files import dump_schedule, parse_schedule, schedule_sha256
from partreduce.topo.document.phases import MAX_PERIOD, MAX_UNROLLED
from partreduce.topo.document.writer import schedule_text
from partreduce.verify.checker.refusal import Refusal
from partreduce.verify.checker.schedule import read_schedule

BLOCKS = ([{"local": [0, 1], "across": []}], [{"local": [0], "across": [0]}], [])
GROUPS = ([{"group": [0, 1]}, {"group": [2, 3], "relaxation": "1/2"}], [{"group": [3, 0]}], [])


def document(phases, **strategy):
    """A schedule file of 2 nodes with 2 workers each."""
    cluster = {"num_nodes": 2, "workers_per_node": 2}
    strategy = {"kind": "static", "phases": phases, **strategy}
    return {"format": "partreduce.schedule", "version": 1, "name": "r", "cluster": cluster, "strategy": strategy}


@pytest.mark.parametrize("seed", range(20))
def test_repeated_phases_are_those_that_are_listed_for_the_loader_the_writer_and_the_checker(seed):
    draw = random.Random(seed)
    phases, more = (BLOCKS, {"node_radices": [2]}) if seed % 2 else (GROUPS, {})
    entries = [(draw.choice(phases), draw.choice((1, 1, 2, 5))) for _ in range(draw.randrange(1, 6))]
    listed = [phase for phase, count in entries for _ in range(count)]
    short = [{"phase": phase, "repeat": count} if count > 1 else phase for phase, count in entries]
    whole = parse_schedule(json.dumps(document(listed, **more)))
    repeated = parse_schedule(json.dumps(document(short, **more)))
    assert repeated == whole
    assert parse_schedule(schedule_text(whole)) == whole
    written = json.loads(schedule_text(whole))["strategy"]["phases"]
    assert len(written) <= len(short)
    assert all(isinstance(entry, list) or entry["repeat"] > 1 for entry in written)
    assert dump_schedule(repeated) == dump_schedule(whole)
    assert all(agree(document(form, **more)) for form in (short, listed, written))
    unrolled = dump_schedule(whole)["strategy"]["phases"]
    read = [read_schedule(document(form, **more)) for form in (unrolled, written)]
    assert {one.sha256 for one in read} == {schedule_sha256(whole)}
    assert read[0].phases == read[1].phases


def test_equal_phases_in_a_row_are_written_once():
    schedule = parse_schedule(json.dumps(document([BLOCKS[0]] * 19 + [BLOCKS[1]], node_radices=[2])))
    assert json.loads(schedule_text(schedule))["strategy"]["phases"] == [{"repeat": 19, "phase": BLOCKS[0]}, BLOCKS[1]]


def test_no_repetition_stands_for_more_phases_or_ranks_than_the_limits():
    def both(phases, num_workers=4, **strategy):
        raw = document(phases, **strategy) | {"cluster": {"num_nodes": 1, "workers_per_node": num_workers}}
        readings = []
        for read in (lambda: parse_schedule(json.dumps(raw)), lambda: read_schedule(json.loads(json.dumps(raw)))):
            try:
                read()
                readings.append(True)
            except (DocumentError, Refusal):
                readings.append(False)
        assert readings[0] == readings[1]
        return readings[0]

    blocks = {"node_radices": []}
    assert both([{"phase": BLOCKS[0], "repeat": MAX_PERIOD}], **blocks)
    assert not both([{"phase": BLOCKS[0], "repeat": MAX_PERIOD}, []], **blocks)
    size = 2**12
    phase = [{"group": list(range(size))}]
    assert both([{"phase": phase, "repeat": MAX_UNROLLED // size}], num_workers=size)
    assert not both([{"phase": phase, "repeat": MAX_UNROLLED // size + 1}], num_workers=size)
    assert not both([{"phase": BLOCKS[0], "repeat": 1}], **blocks)
    assert not both([{"phase": BLOCKS[0]}], **blocks)
    assert not both([{"phase": {}, "repeat": 2}], **blocks)
    assert not both([{"phase": BLOCKS[0], "repeat": 2, "more": 1}], **blocks)
