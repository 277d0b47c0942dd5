"""The referee's comparison: differences are named, renamed words are none, and tables say which are on purpose."""

import json
import sys
from copy import deepcopy

import pytest

from benchmarks.referee import compare, words
from benchmarks.referee.__main__ import PARTS, main
from benchmarks.referee.records import load, rounded, save, shortened, summary

RECORD = {
    "ring, slow": {
        "input": {"schedule": {"strategy": {"kind": "generated", "when": {"late": 1}, "how": {"form": "ring"}}}},
        "outcome": {
            "claims": {"consensus": {"status": "proved", "how": "spectrum"}},
            "seconds": [0.5, 1e-14],
            "of": 3,
        },
    }
}


NO_TABLES = compare.Tables()


def compared(outcome, tables=NO_TABLES, record=RECORD):
    """What is found where a checkout does this."""
    return compare.compare("metrics", record, lambda _: outcome, tables)


def changed(**values):
    return RECORD["ring, slow"]["outcome"] | values


def test_what_is_equal_but_for_rounding_is_no_difference():
    result = compared(changed(seconds=[0.5 * (1 + 1e-11), 0.0]))
    assert (result.num_equal, result.num_different, result.lines) == (1, 0, [])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"seconds": [0.5 * (1 + 1e-7), 0.0]}, "ring, slow: seconds[0]: was 0.5, is 0.50000005"),
        ({"seconds": [0.5]}, "ring, slow: seconds: was [0.5, 1e-14], is [0.5]"),
        ({"of": 4}, "ring, slow: of: was 3, is 4"),
        ({"of": None}, "ring, slow: of: was 3, is None"),
        ({"new": 1}, "ring, slow: new: was 'nothing', is 1"),
        (
            {"claims": {}},
            "ring, slow: claims.consensus: was {'status': 'proved', 'how': 'spectrum'}, is 'nothing'",
        ),
    ],
)
def test_a_difference_is_named_with_both_values(change, words):
    result = compared(changed(**change))
    assert result.lines == [words]
    assert (result.num_equal, result.num_different) == (0, 1)


def test_an_error_of_the_checkout_is_a_difference():
    def observe(_):
        raise ValueError("a bug")

    result = compare.compare("metrics", RECORD, observe, compare.Tables())
    assert result.num_different == 1
    assert "ring, slow: ended: was 'nothing', is 'ValueError: a bug'" in result.lines


def test_tables_say_which_differences_are_on_purpose_and_only_those():
    explained = compare.Entry(part="metrics", artefact="ring*", field="seconds*", reason="exact now")
    removed = compare.Entry(holds="'kind': 'generated'", field="of", reason="cut")
    tables = compare.Tables((explained,), (removed,))
    result = compared(changed(seconds=[1.0, 0.0], of=4), tables)
    assert (result.num_equal, result.num_different, result.lines) == (0, 0, [])
    assert result.because == {("explained", "exact now"): 1, ("removed", "cut"): 1}
    assert compared(changed(claims={}), tables).num_different == 1
    assert compared(changed(of=4), compare.Tables((compare.Entry(was="3", now="4"),))).num_different == 0
    assert compared(changed(of=5), compare.Tables((compare.Entry(was="3", now="4"),))).num_different == 1
    assert compare.Tables.read().removed, "the table that is kept can be read"


def test_renamed_keys_and_words_are_no_difference(monkeypatch):
    seen = []
    monkeypatch.setattr(words, "KEYS", {"when": "sync", "strategy.how": "transport", "form": "algorithm"})
    monkeypatch.setattr(words, "VALUES", {"kind": {"generated": "dynamic_groups"}})
    monkeypatch.setattr(words, "FORMS", {"plans": {"rule": "all"}})
    monkeypatch.setattr(words, "PHRASES", {r"\bpace\b": "steps per round", "synthesised": "synthesized"})
    record = deepcopy(RECORD)
    record["ring, slow"]["input"]["plans"] = [{"lost": [0]}]
    record["ring, slow"]["outcome"] |= {"error": "pace: is 0", "front": {"synthesised 3": 1, "pace": "spaced"}}

    def observe(given):
        seen.append(given)
        return changed(error="steps per round: is 0", front={"synthesized 3": 1, "pace": "spaced"})

    assert compare.compare("metrics", record, observe, compare.Tables()).lines == []
    strategy = {"kind": "dynamic_groups", "sync": {"late": 1}, "transport": {"algorithm": "ring"}}
    assert seen == [{"schedule": {"strategy": strategy}, "plans": {"rule": "all"}}]


def test_long_lists_become_summaries_that_tell_them_apart():
    floats = [0.1 * number for number in range(100)]
    swapped = [floats[1], floats[0], *floats[2:]]
    assert shortened(floats[:5]) == floats[:5]
    assert summary(floats)["sum"] == pytest.approx(summary(swapped)["sum"])
    assert summary(floats)["by_place"] != pytest.approx(summary(swapped)["by_place"], rel=1e-9)
    assert shortened([["1/2", number] for number in range(50)]) != shortened([["1/2", n] for n in range(1, 51)])
    assert rounded({1: float("nan"), "x": (1 / 3, True, None)}) == {"1": "nan", "x": [0.333333333333, True, None]}


def test_a_planted_change_in_a_record_is_found_by_the_command(monkeypatch, capsys, tmp_path):
    name = "row in int8"
    kept = load("codecs")[name]
    monkeypatch.setattr("benchmarks.referee.records.FOLDER", tmp_path)
    monkeypatch.setattr(sys, "argv", ["referee", "compare", "--part", "codecs"])
    save("codecs", {name: kept})
    assert main() == 0
    assert "1 artefacts, 1 equal, 0 with unexplained differences" in capsys.readouterr().out
    kept["outcome"]["300"] += 1
    save("codecs", {name: kept})
    assert main() == 1
    assert "codecs: row in int8: 300: was 305, is 304" in capsys.readouterr().out


def test_records_of_all_parts_are_kept():
    assert all(load(part) for part in PARTS)


@pytest.mark.parametrize("part", PARTS)
def test_what_would_be_recorded_today_is_the_record_in_new_words(part):
    """A word that is missing in the tables, or an input that nobody renamed, would compare two different things."""
    tables = compare.Tables.read()
    recorded = {
        name: json.dumps(words.translated(artefact["input"]), sort_keys=True)
        for name, artefact in load(part).items()
        if not any(entry.field == "*" for entry in tables.of(part, name, str(artefact)).removed)
    }
    today = [json.dumps(given, sort_keys=True) for given in PARTS[part].inputs().values()]
    missing = [name for name, given in recorded.items() if given not in today]
    assert missing == []
