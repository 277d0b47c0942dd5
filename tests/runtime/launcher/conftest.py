"""Fixtures that start `partreduce run` on one node and on two."""

import pytest

from helpers.two_nodes import Network, NodesRun, why_no_network
from helpers.warm import WARM
from partreduce.runtime.launcher.signals import mark_delivered


@pytest.fixture(autouse=True)
def no_request():
    """Clear the termination request that an earlier test sent to this process."""
    mark_delivered()


@pytest.fixture
def run_script(tmp_path):
    """Write a script and run it to its end with these arguments and `options` of `partreduce run`."""

    def run(text, *arguments, options=("--workers", 2), **more):
        (tmp_path / "script.py").write_text(text)
        return WARM.run("partreduce", "run", *options, tmp_path / "script.py", *arguments, **more)

    return run


@pytest.fixture
def begin(tmp_path):
    """Start runs in the test's folder; their processes end with the test."""
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
