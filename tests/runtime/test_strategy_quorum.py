"""A quorum at run time: refused in one line, until something carries it out."""

from types import SimpleNamespace

import pytest

from preduce.runtime.strategies.all_reduce import all_reduce
from preduce.topo.errors import MissingFeatureError
from preduce.topo.strategies import AllReduce, Quorum
from preduce.topo.strategies.quorum import Start


def test_what_cannot_run_yet_says_so():
    run = SimpleNamespace(schedule=SimpleNamespace(name="s"))
    with pytest.raises(MissingFeatureError, match=r"schedule 's': when\.quorum cannot be executed by this version"):
        all_reduce(AllReduce(when=Quorum(quorum=Start.SOLO)), run)
