"""Properties of every registered entry on a list of clusters."""

import inspect
import pkgutil
from functools import partial
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from docs.make_catalogue import page
from helpers.exact_matrices import exact_round
from helpers.refusals import check_error
from partreduce import Cluster
from partreduce.errors import ScheduleError
from partreduce.files import parse_schedule
from partreduce.schedulers import registry
from partreduce.schedulers.catalogue.graphs import GRAPHS
from partreduce.schedulers.catalogue.outer_steps import OUTER_STEPS
from partreduce.schedulers.catalogue.rounds import PER_ROUND
from partreduce.schedulers.catalogue.rules import RULES
from partreduce.schedulers.entry import Entry
from partreduce.schedulers.rules import algebra
from partreduce.strategies import AllReduce, NeighborAveraging, StaticGroups
from partreduce.topo.document.canonical import canonical_bytes

CLUSTERS = ["2x4", "4x4", "3x4", "5x3", "8x2", "1x8", "9x1", "16x1", "3,3,2", "5,3", "1,1,4"]
CASES = [(name, cluster) for name in registry.names() for cluster in CLUSTERS]


def build(name, text):
    """Return the schedule, or None after checking that both refusals have the same reason."""
    cluster = Cluster.parse(text)
    entry = registry.entry(name)
    reason = entry.why_not(cluster)
    if reason is None:
        return registry.build(name, cluster)
    refused = check_error(ScheduleError, name, registry.build, name, cluster)
    assert str(refused) == f"{name} on {text}: {reason}"
    return None


def partition_law(schedule):
    """Every phase is a partition, and `group_of` agrees with it."""
    for t in range(schedule.period):
        phase = schedule.phase(t)
        labels = phase.labels()  # raises for overlapping groups
        assert all(size >= 2 for size in phase.sizes)
        for worker in range(schedule.num_workers):
            group = schedule.group_of(worker, schedule.prologue + t)
            assert group == (None if labels[worker] < 0 else phase[int(labels[worker])])


def stochastic_law(matrix):
    """A round is doubly stochastic in exact arithmetic."""
    assert (matrix.sum(axis=0) == 1).all()
    assert (matrix.sum(axis=1) == 1).all()
    assert matrix.min() >= 0


@pytest.mark.parametrize(("name", "cluster"), CASES)
def test_every_entry_is_valid_reaches_consensus_and_round_trips(name, cluster):
    built = build(name, cluster)
    if built is None:
        return
    assert parse_schedule(canonical_bytes(built)) == built
    schedule = built.meetings  # plain means replace outer steps that have no mixing matrices
    if not isinstance(schedule.strategy, NeighborAveraging):
        partition_law(schedule)
    distinct, product = {}, np.eye(schedule.num_workers)
    for t in range(schedule.period):
        key = schedule.strategy.rounds[t] if isinstance(schedule.strategy, NeighborAveraging) else schedule.phase(t)
        if key not in distinct:
            stochastic_law(matrix := exact_round(schedule, t))
            distinct[key] = matrix.astype(float)
        product = distinct[key] @ product
    # Consensus: the product of W over a period, with itself a few times, contracts off the mean.
    power = np.linalg.matrix_power(product - 1 / schedule.num_workers, 8)
    assert np.linalg.norm(power, 2) < 1 - 1e-6


@pytest.mark.parametrize("name", registry.names())
def test_entry_describes_itself(name):
    entry = registry.entry(name)
    assert isinstance(entry, Entry)
    assert entry.name == name
    assert entry.summary.endswith(".")
    assert entry.source
    assert len({parameter.name for parameter in entry.parameters}) == len(entry.parameters)
    assert all(parameter.help for parameter in entry.parameters)
    assert any(entry.why_not(Cluster.parse(text)) is None for text in CLUSTERS)


@pytest.mark.parametrize("name", registry.names())
def test_one_worker_is_refused_in_one_line(name):
    check_error(ScheduleError, "1 worker", registry.build, name, Cluster.parse("1x1"))


def public_functions(package):
    """Return the public functions that a package's modules define, by dotted name."""
    modules = [
        import_module(module.name)
        for module in pkgutil.iter_modules(import_module(package).__path__, package + ".")
        if not module.ispkg
    ]
    return {
        f"{module.__name__}.{name}": function
        for module in modules
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and not name.startswith("_")
    }


@pytest.mark.parametrize("package", ["partreduce.schedulers.rules", "partreduce.schedulers.constructions"])
def test_every_builder_function_is_registered(package):
    rows = [registry.entry(name).make for name in registry.names()]
    built = {make.func if isinstance(make, partial) else make for make in rows}
    builders = {
        name: function
        for name, function in public_functions(package).items()
        if next(iter(inspect.signature(function).parameters), "") == "cluster"
        and {"StaticGroups", "NeighborAveraging", "AllReduce", "NoReturn"}
        & set(str(inspect.signature(function).return_annotation).split(" | "))
        and function is not algebra.static
    }
    assert builders
    missing = [name for name, function in builders.items() if function not in built]
    assert not missing, f"{missing}: add a row to a table of schedulers/catalogue/"


def test_every_graph_is_registered():
    graphs = {
        name.rpartition(".")[2].removesuffix("_graph").replace("_", "-")
        for name, function in public_functions("partreduce.topo.graphs").items()
        if inspect.signature(function).return_annotation == "Graph"
    }
    assert {"ring", "exponential", "random-regular"} <= graphs
    missing = graphs - set(registry.names())
    assert not missing, f"{missing}: add a row to schedulers/catalogue/graphs.py"


def test_names_are_unique():
    tables = (*RULES, *OUTER_STEPS, *GRAPHS, *PER_ROUND)
    assert [row.name for row in tables] == registry.names()


@pytest.mark.parametrize("value", [0, -1, "x", 1.5, True, "", None, 10**30])
def test_invalid_parameter_values_are_refused(value):
    check_error(ScheduleError, "allreduce: every", registry.build, "allreduce", Cluster.parse("4x4"), every=value)


def test_text_values_are_parsed():
    cluster = Cluster.parse("4x4")
    assert registry.build("allreduce", cluster, every="4") == registry.build("allreduce", cluster, every=4)
    assert registry.build("node-then-all", cluster, **{"node-rounds": "2"}).period == 3
    assert registry.build("hyper-cuboid", cluster, factors="2x2,4").period == 3


@pytest.mark.parametrize("name", [n for n in registry.names() if registry.entry(n).kind == "rule"])
def test_rules_stay_rules_for_a_million_workers(name):
    cluster = Cluster.parse("250000x4")
    schedule = registry.build(name, cluster)
    assert isinstance(schedule.strategy, StaticGroups)
    assert schedule.rule() is not None
    assert schedule.num_workers == 1_000_000


def test_every_sets_steps_per_round_of_allreduce():
    schedule = registry.build("allreduce", Cluster.parse("4x4"), every=5)
    assert isinstance(schedule.strategy, AllReduce)
    assert schedule.strategy.steps_per_round == 5
    assert schedule.name == "allreduce(every=5)"


def test_catalogue_page_is_current():
    written = (Path(__file__).parents[2] / "docs" / "catalogue.md").read_text(encoding="utf-8")
    assert written == page(), "docs/catalogue.md is stale: run `python docs/make_catalogue.py`"
