"""Pictures of proofs: the tree spans exactly what meets, and every verdict can be drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

import networkx as nx
import pytest

from partreduce.report.witness import draw_witness, meetings
from partreduce.schedulers import registry
from partreduce.topo.cluster import Cluster
from partreduce.topo.errors import InputError
from partreduce.topo.phase import Phase
from partreduce.topo.schedule import Schedule
from partreduce.topo.strategies import GroupPhases, Static
from partreduce.verify.prove import prove

if TYPE_CHECKING:
    from pathlib import Path


def explicit(*phases: list[tuple[int, ...]]) -> Schedule:
    return Schedule(
        "s", Cluster.regular(2, 4), Static(phases=GroupPhases(tuple(Phase.from_groups(8, p) for p in phases)))
    )


@pytest.mark.parametrize("name", ["prague-figure-10", "allreduce", "node-then-all", "ring", "hyper-cuboid"])
def test_meetings_of_a_connected_schedule_are_a_spanning_tree(name: str) -> None:
    tree = nx.Graph([(a, b) for _, a, b in meetings(registry.build(name, Cluster.regular(4, 4)))])
    assert nx.is_tree(tree)
    assert set(tree) == set(range(16))


def test_meetings_of_a_disconnected_schedule_span_its_parts() -> None:
    forest = nx.Graph([(a, b) for _, a, b in meetings(explicit([(0, 1, 2)], [(2, 3), (4, 5)]))])
    assert sorted(map(sorted, nx.connected_components(forest))) == [[0, 1, 2, 3], [4, 5]]


@pytest.mark.parametrize(
    "phases",
    [[[(0, 1, 2), (2, 3)]], [[(0, 1), (2, 3)]], [[(0, 1, 2, 3, 4, 5, 6, 7)]]],
    ids=["conflict", "parts", "proved"],
)
def test_every_verdict_can_be_drawn(tmp_path: Path, phases: list[list[tuple[int, ...]]]) -> None:
    schedule = explicit(*phases)
    draw_witness(schedule, prove(schedule), tmp_path / "witness.svg")
    assert (tmp_path / "witness.svg").read_text().lstrip().startswith("<?xml")


def test_too_many_workers_are_refused_with_the_way_out(tmp_path: Path) -> None:
    schedule = registry.build("node-then-all", Cluster.regular(100, 4))
    with pytest.raises(InputError, match="design the same rule for fewer nodes"):
        draw_witness(schedule, prove(schedule), tmp_path / "witness.png")
