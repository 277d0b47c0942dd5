"""Fixtures of the run-time's tests."""

import pytest

from helpers.thread_ranks import ThreadRanks


@pytest.fixture(scope="module")
def ranks():
    """Ranks as threads of this process, with worlds of their own for each file of tests."""
    return ThreadRanks(12)
