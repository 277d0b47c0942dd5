"""Idioms of training loops under every strategy kind: equal to plain torch, or refused or warned of in one line."""

import warnings
from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
import torch.distributed as dist

from helpers.conformance.cells import problems_of, run_reference, run_time
from helpers.conformance.idioms import IDIOMS
from helpers.conformance.kinds import KINDS, N
from helpers.generator_rig import serving
from partreduce.errors import InputError
from partreduce.schedulers.protocols.group_generator.draw import GeneratorSetting

CELLS = [(idiom, kind) for idiom in IDIOMS for kind in KINDS]


@pytest.fixture
def generator(request, monkeypatch):
    """A group generator of its own for each cell that needs one."""
    kind = KINDS[request.getfixturevalue("kind")]
    if kind.strategy.kind != "dynamic_groups":
        yield
        return
    pytest.importorskip("zmq")
    setting = replace(GeneratorSetting.of(kind.strategy, kind.schedule.cluster), max_known=8)
    with serving(setting) as (_, variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        yield


@pytest.fixture
def group(request):
    """A default process group of this process alone, for idioms with torch's own wrappers."""
    if not IDIOMS[request.getfixturevalue("idiom")].in_group:
        yield
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("idiom", "kind"), CELLS, ids=[f"{idiom}-{kind}" for idiom, kind in CELLS])
@pytest.mark.usefixtures("generator", "group")
def test_an_idiom_equals_plain_torch_or_says_why_not(ranks, tmp_path, idiom, kind):
    loop, outcome = IDIOMS[idiom].loop, IDIOMS[idiom].outcome(kind)
    if outcome.verdict == "refused":
        for error in run_time(ranks, loop, KINDS[kind], folder=tmp_path, catch=InputError):
            assert isinstance(error, InputError)
            assert outcome.words in str(error)
            assert "\n" not in str(error)
        return
    with warnings.catch_warnings(record=True, action="always") as caught:
        results = run_time(ranks, loop, KINDS[kind], folder=tmp_path)
    said = [str(warning.message) for warning in caught if "partreduce" in str(warning.message)]
    if outcome.verdict == "warned":
        assert 0 < sum(outcome.words in text for text in said) <= N, "once a worker, however many steps it takes"
        if not outcome.compared:
            return
        said = []
    assert said == []
    notes, groups = zip(*results, strict=True)
    assert problems_of(KINDS[kind], notes, run_reference(loop, KINDS[kind], groups)) == [""] * N


def test_the_page_is_what_the_suite_says():
    root = Path(__file__).resolve().parents[3]
    spec = spec_from_file_location("make_conformance", root / "docs" / "make_conformance.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.TARGET.read_text() == module.text(), "stale: run `python docs/make_conformance.py`"
