"""Every inequality and premise of the checker's claims, with data that is just true and data that is just false."""

from __future__ import annotations

import pytest

from helpers.edges import EDGES, said


@pytest.mark.parametrize("edge", EDGES, ids=lambda edge: f"{edge.file}: {edge.rule}")
def test_just_true_holds_and_just_false_is_refused(edge):
    assert said(*edge.true) is None
    assert edge.says in (said(*edge.false) or "accepted")


def test_no_rule_stands_twice():
    assert len({(edge.file, edge.rule) for edge in EDGES}) == len(EDGES)
