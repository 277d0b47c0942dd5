"""One weight on every edge."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from preduce.topo.strategies.neighbor import Round

if TYPE_CHECKING:
    from fractions import Fraction

    from preduce.topo.graphs.base import Graph


def constant(graph: Graph, weight: Fraction) -> Round:
    """`weight` on every edge, the rest on oneself. Doubly stochastic where workers send as often as they hear."""
    return Round.from_arrays(graph.num_workers, graph.sources, graph.targets, [weight], np.zeros(len(graph), np.int32))
