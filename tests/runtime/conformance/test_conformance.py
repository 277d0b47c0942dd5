"""Idioms of training loops under every strategy kind match plain torch, or raise or warn in one line."""

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
    """A separate group generator for each cell that needs one."""
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
    """A default process group with only this process, for idioms with DDP and other wrappers of torch."""
    if not IDIOMS[request.getfixturevalue("idiom")].in_group:
        yield
        return
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("idiom", "kind"), CELLS, ids=[f"{idiom}-{kind}" for idiom, kind in CELLS])
@pytest.mark.usefixtures("generator", "group")
def test_idiom_matches_plain_torch_or_raises_or_warns(ranks, tmp_path, idiom, kind):
    loop, outcome = IDIOMS[idiom].loop, IDIOMS[idiom].outcome(kind)
    if outcome.verdict == "refused":
        for error in run_time(ranks, loop, KINDS[kind], folder=tmp_path, catch=InputError):
            assert isinstance(error, InputError)
            assert outcome.words in str(error)
            assert "\n" not in str(error)
        return
    with warnings.catch_warnings(record=True, action="always") as caught:
        results = run_time(ranks, loop, KINDS[kind], folder=tmp_path)
    message = [str(warning.message) for warning in caught if "partreduce" in str(warning.message)]
    if outcome.verdict == "warned":
        assert 0 < sum(outcome.words in text for text in message) <= N, "at most once per worker"
        if not outcome.compared:
            return
        message = []
    assert message == []
    notes, groups = zip(*results, strict=True)
    assert problems_of(KINDS[kind], notes, run_reference(loop, KINDS[kind], groups)) == [""] * N


def test_generated_page_matches_the_idioms():
    root = Path(__file__).resolve().parents[3]
    spec = spec_from_file_location("make_conformance", root / "docs" / "make_conformance.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.TARGET.read_text() == module.text(), "stale: run `python docs/make_conformance.py`"
