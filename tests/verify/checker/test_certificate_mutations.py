"""A short forgery campaign: entries and schedules are corrupted, hashes recomputed; no false claim is confirmed.

`python -m benchmarks.forgery --attempts 100000` runs the full campaign.
"""

import pytest

from benchmarks.forgery.campaign import WAYS, pool, run
from partreduce.verify import checker


@pytest.mark.parametrize("attempts", [1000, pytest.param(6000, marks=pytest.mark.slow)])
def test_forgery_campaign_confirms_only_true_claims(attempts):
    """The oracle also refuses false claims; most claims moved to other schedules are false."""
    tally = run(attempts, seed=7)
    assert not tally.false
    assert not tally.refused_honest
    assert {kind for way, kind in tally.attempts if way == WAYS[0]} >= set(checker.CLAIMS)
    assert attempts / 20 < sum(tally.accepted.values()) < sum(tally.attempts.values()) / 2
    assert len(pool(7)) > 60
