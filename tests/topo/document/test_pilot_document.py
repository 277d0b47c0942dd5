"""Pilot files: what is written is read back, and nothing else is read."""

from __future__ import annotations

import json
from typing import Any

import pytest

from partreduce.errors import DocumentError, FileError
from partreduce.files import load_pilot
from partreduce.topo.document.pilot import dump_pilot, pilot_of, write_pilot
from partreduce.topo.document.schema import FOLDER
from partreduce.topo.pilot import Price, Prices, Probe
from partreduce.types import Pilot


def pilot(*, sorted_data=False):
    return Pilot(
        num_workers=4,
        data="per-worker" if sorted_data else "shuffled",
        steps=60,
        seeds=(0, 1, 5),
        prices=Prices(
            consensus_distance=Price(0.02, 0.0, 0.05),
            late=Price(0.0, 0.0, 0.1),
            drift=Price(0.5, 0.25, 1.0) if sorted_data else None,
            error=0.125,
            averaging=Price(0.3, 0.2, 0.4),
        ),
        probes=(
            Probe(schedule="every 4", consensus_distance=1.5, drift=3.0, late=0.0, steps_ratios=(1.0, 1.25, 1.5)),
            Probe(schedule="late", consensus_distance=0.75, drift=0.0, late=0.9, steps_ratios=(1.0, 0.9, 1.1)),
            Probe(
                schedule="ran",
                consensus_distance=0.0,
                drift=0.0,
                late=0.0,
                steps_ratios=(1.0, 1.0, 2.0),
                sha256="a5" * 32,
            ),
        ),
    )


def test_the_example_in_the_documentation_is_a_pilot():
    page = (FOLDER.parent / "docs" / "pilot.md").read_text()
    block = page.split("```json\n")[1].split("```")[0]
    assert dump_pilot(pilot_of(json.loads(block))) == json.loads(block)


@pytest.mark.parametrize("sorted_data", [False, True])
def test_a_pilot_that_is_written_is_read_back(tmp_path, sorted_data):
    written, path = pilot(sorted_data=sorted_data), tmp_path / "pilot.json"
    write_pilot(path, written)
    assert load_pilot(path) == written
    document = json.loads(path.read_text())
    assert document == dump_pilot(written)
    assert max(map(len, path.read_text().splitlines())) < 250


def changed(*path, value):
    document: Any = json.loads(json.dumps(dump_pilot(pilot())))
    place = document
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return document


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "must be an object"),
        ({"format": "partreduce.pilot"}, "is missing"),
        (changed("format", value="partreduce.cluster"), 'must be "partreduce.pilot"'),
        (changed("version", value=2), "install a newer partreduce"),
        (changed("version", value=True), "reads version 1"),
        (changed("workers", value=4), 'unknown key "workers"; did you mean "num_workers"'),
        (changed("num_workers", value=4.0), "num_workers: is 4.0; it must be an integer"),
        (changed("num_workers", value=True), "num_workers: is true; it must be an integer"),
        (changed("data", value="sorted"), "data: is"),
        (changed("seeds", value=[0]), "seeds: is"),
        (changed("probes", value=[]), "probes: is"),
        (changed("prices", "late", value={"value": 1, "low": 0}), 'the key "high" is missing'),
        (changed("prices", "late", value={"value": 3, "low": 0, "high": 1}), "prices.late: is 3"),
        (changed("prices", "late", "low", value=-0.1), "prices.late.low: is -0.1; it must be >= 0"),
        (changed("prices", "error", value="5%"), "prices.error: is"),
        (changed("prices", "drift", value={"value": 1, "low": 0, "high": 2}), "the data are shuffled"),
        (changed("data", value="per-node"), "prices.drift: is for data that differ"),
        (changed("probes", 1, "late", value=True), r"probes\[1\].late: is true; it must be a number"),
        (
            changed("probes", 0, "steps_ratios", value=[1.0, 2.0]),
            r"probes\[0\].steps_ratios: has 2 numbers for 3 seeds",
        ),
        (changed("probes", 0, "steps_ratios", value=[1.0, 0.0, 2.0]), "must be > 0"),
        (changed("probes", 2, "sha256", value="A5" * 32), r"probes\[2\].sha256"),
        (changed("probes", 0, "consensus_distance", value=float("inf")), "must be a finite number"),
    ],
)
def test_every_other_document_is_refused_in_one_line_with_its_place(document, message):
    with pytest.raises(DocumentError, match=message) as caught:
        pilot_of(document)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_document_is_refused_by_name(tmp_path):
    path = tmp_path / "pilot.json"
    with pytest.raises(FileError, match=r"pilot\.json"):
        load_pilot(path)
    path.write_text('{"format": "partreduce.pilot", "format": "partreduce.pilot"}')
    with pytest.raises(DocumentError, match=r"pilot\.json"):
        load_pilot(path)
