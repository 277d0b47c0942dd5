"""A short slice of the forgery campaign; `python -m benchmarks.forgery --attempts 100000` is the whole."""

import pytest

from benchmarks.forgery.campaign import WAYS, pool, run
from partreduce.verify import checker


@pytest.mark.parametrize("attempts", [1200, pytest.param(4000, marks=pytest.mark.slow)])
def test_no_false_claim_is_confirmed_and_every_honest_one_is(attempts):
    tally = run(attempts, seed=7)
    assert not tally.false
    assert not tally.refused_honest
    assert {kind for way, kind in tally.attempts if way == WAYS[0]} >= set(checker.CLAIMS)
    assert sum(tally.accepted.values()) > attempts / 20, "true claims are accepted all the same"


def test_the_campaign_forges_what_only_a_false_claim_could_gain():
    """The oracle says no as well: of claims moved to other schedules most are false."""
    tally = run(600, seed=8)
    assert not tally.false
    assert sum(tally.accepted.values()) < sum(tally.attempts.values()) / 2
    assert len(pool(8)) > 60
