"""Two nodes, for tests of runs over several."""

import pytest

from helpers.two_nodes import Network, NodesRun, why_no_network
from partreduce.runtime.launcher.signals import mark_delivered


@pytest.fixture(autouse=True)
def no_request():
    """A signal that an earlier test sent to this process asks nothing of the next, which may wait without a handler."""
    mark_delivered()


@pytest.fixture
def begin(tmp_path):
    """Starts runs in the test's folder; what is left of them ends with the test."""
    made: list[NodesRun] = []

    def begin(*arguments, **options):
        made.append(NodesRun(tmp_path, *arguments, **options))
        return made[-1]

    yield begin
    for run in made:
        run.close()


@pytest.fixture
def network():
    if reason := why_no_network():
        pytest.skip(reason)
    made = Network()
    yield made
    made.close()
