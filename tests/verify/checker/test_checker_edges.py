"""Boundary cases: every inequality and premise of the checker's claims, barely satisfied and barely violated."""

import pytest

from docs.make_guards import PAGE, page
from helpers.edges import EDGES, check_entry, check_entry_of
from helpers.readings import read


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: f"{edge.file}: {edge.rule}")
def test_boundary_values_are_accepted_or_refused(edge):
    assert check_entry(*edge.true) is None
    refusal = check_entry(*edge.false) or "accepted"
    assert edge.says in refusal
    assert refusal.startswith(("claims[0] (", "schedule")), "the refusal names the place"
    assert "None" not in refusal
    assert "is null" not in refusal


def malform(value):
    """Yield malformed variants of a value, each with the place of the change."""
    if isinstance(value, list):
        yield from ((wrong, "") for wrong in ("x", [], 7) if wrong != value)
        for number in {0, len(value) - 1} if value else ():
            yield from (
                ([*value[:number], o, *value[number + 1 :]], f"[{number}]{at}") for o, at in malform(value[number])
            )
    else:
        yield from ((wrong, "") for wrong in ("x", {}, 7)[: 2 if isinstance(value, int) else 3])


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: f"{edge.file}: {edge.rule}")
def test_malformed_entry_members_are_refused_with_their_place(edge):
    schedule, entry = read(edge.true[0]), edge.true[1]
    for member in entry.keys() - {"claim", "method"}:
        for value, at in malform(entry[member]):
            refusal = check_entry_of(schedule, {**entry, member: value})
            assert refusal is not None, (member, value)
            named = refusal.split(" (", 1)[-1]
            assert refusal.startswith(("claims[0] (", "schedule")), refusal
            if at:
                assert f".{member}[" in named or f"{member}" in named, (refusal, member, value)
        without = {name: given for name, given in entry.items() if name != member}
        assert f"lacks ['{member}']" in check_entry_of(schedule, without)
    refusal = check_entry_of(schedule, {**entry, "more": 1})
    assert refusal.startswith("claims[0] (")
    assert "unknown keys ['more']" in refusal


def test_boundary_case_names_are_unique():
    assert len({(edge.file, edge.rule) for edge in EDGES}) == len(EDGES)


def test_guards_page_is_current():
    """Written by `python docs/make_guards.py`."""
    assert PAGE.read_text(encoding="utf-8") == page()
