"""The interface of runners: these methods only; everything else follows from the traits of a schedule."""

import ast
from dataclasses import asdict
from pathlib import Path

import pytest

import partreduce.runtime.strategies
from helpers.conformance.kinds import KINDS
from partreduce.runtime.strategies.base import Runner, traits_of

ROOT = Path(partreduce.runtime.__file__).parent
METHODS = {"before_step", "after_step", "check_step", "pause", "settle", "drain", "state", "load", "close"}
VALUES = {"is_measured", "membership", "reducers"}


def runner_attributes():
    """The attributes of names `runner` that files outside `strategies` use."""
    for path in sorted(ROOT.rglob("*.py")):
        if "strategies" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and (
                (isinstance(node.value, ast.Name) and node.value.id == "runner")
                or (isinstance(node.value, ast.Attribute) and node.value.attr == "runner")
            ):
                yield node.attr


def test_runtime_uses_only_the_runner_interface():
    assert set(runner_attributes()) == METHODS | VALUES


def test_runner_has_exactly_the_interface_methods():
    public = {name: value for name, value in vars(Runner).items() if not name.startswith("_")}
    assert {name for name, value in public.items() if callable(value)} == METHODS
    assert {name for name, value in public.items() if not callable(value)} == {"is_measured"}


TRAITS = {
    "allreduce": "averages_gradients keeps_equal carries_state",
    "allreduce, pipeline": "averages_gradients keeps_equal carries_state",
    "allreduce, quorum": "averages_gradients keeps_equal agrees_on_end",
    "allreduce, layers": "averages_gradients keeps_equal carries_state",
    "allreduce, every 2": "saves_inside_rounds",
    "allreduce, late": "needs_round_start saves_inside_rounds",
    "allreduce, outer": "carries_state measures_from_start saves_inside_rounds",
    "allreduce, fragments": "carries_state measures_from_start saves_inside_rounds",
    "static": "saves_inside_rounds",
    "static, outer": "carries_state measures_from_start saves_inside_rounds",
    "neighbor": "saves_inside_rounds",
    "neighbor, late": "needs_round_start saves_inside_rounds",
    "neighbor, gap": "drains_together",
    "neighbor, gap, parallel": "drains_together needs_round_start",
    "dynamic_groups": "",
    "server": "averages_gradients keeps_equal carries_state",
    "server, asynchronous": "drains_together measures_from_start",
    "pairwise": "drains_together",
}


@pytest.mark.parametrize("name", sorted(KINDS))
def test_traits_of_every_kind(name):
    assert {trait for trait, has in asdict(traits_of(KINDS[name].schedule)).items() if has} == set(TRAITS[name].split())


def runners(base=Runner):
    for one in base.__subclasses__():
        yield one
        yield from runners(one)


def test_runner_classes_define_no_boolean_flags():
    found = list(runners())
    assert {one.__name__ for one in found} == {
        "AsynchronousServer",
        "GapMeans",
        "GeneratedMeans",
        "GradientAverage",
        "OneSided",
        "PairMeans",
        "ParameterAverage",
        "QuorumGradients",
    }
    for one in found:
        assert not [name for name, value in vars(one).items() if isinstance(value, bool)], one
