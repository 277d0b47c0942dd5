"""Every registry knows every kind of strategy: a new kind that is left out somewhere is named here, not by a user."""

import json
import re
from pathlib import Path

import pytest

from partreduce.files import dump_schedule, parse_schedule
from partreduce.planner.predict import ARRAYS
from partreduce.runtime import strategies
from partreduce.schedulers.simulator.simulate import PROTOCOLS
from partreduce.topo.document.strategies import KINDS
from partreduce.verify import checker
from partreduce.verify.prove import STATEMENTS, prove

PAGE = (Path(__file__).parents[2] / "docs" / "file-format.md").read_text(encoding="utf-8")
SCHEDULES = re.compile(r'^```json title="schedule"\n(.*?)^```$', re.MULTILINE | re.DOTALL)
EXAMPLES = [text.encode() for text in SCHEDULES.findall(PAGE)]


def test_documents_provers_and_runners_know_the_same_kinds():
    assert set(STATEMENTS) == set(KINDS)
    assert {entry.kind.kind for entry in strategies._RUNNERS} == set(KINDS)


def test_the_page_of_the_format_has_an_example_of_every_kind():
    assert {json.loads(text)["strategy"]["kind"] for text in EXAMPLES} == set(KINDS)


@pytest.mark.parametrize("text", EXAMPLES, ids=range(len(EXAMPLES)))
def test_a_kind_with_fixed_rounds_has_a_certificate_that_the_checker_reads(text):
    schedule = parse_schedule(text)
    if not schedule.is_mixing:
        assert schedule.strategy.protocol in PROTOCOLS, "virtual time runs its protocol"
        assert schedule.strategy.protocol in ARRAYS, "what a prediction says of its memory"
        return
    certificate = json.loads(json.dumps(prove(schedule).certificate))
    confirmed = list(checker.check(certificate, checker.read_schedule(dump_schedule(schedule))))
    assert confirmed == [entry["claim"] for entry in certificate["claims"]] != []
