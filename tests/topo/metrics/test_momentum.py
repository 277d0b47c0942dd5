"""How much momentum a graph bears, against the recursion itself."""

import numpy as np
import pytest

from partreduce.topo.graphs.hop import ring_based
from partreduce.topo.graphs.weights import weigh
from partreduce.topo.metrics.outer_steps import largest_rate
from partreduce.topo.mixing import mixing_matrix


def spread_after(matrix, momentum, rate, *, parallel, steps=4000):
    """What is left of the differences between workers on the loss x²/2, from a random start; 1 at the start."""
    x = np.random.default_rng(1).standard_normal(len(matrix))
    x -= x.mean()
    x /= np.linalg.norm(x)
    velocity = np.zeros_like(x)
    for _ in range(steps):
        velocity = momentum * velocity + x
        x = matrix @ x - rate * velocity if parallel else matrix @ (x - rate * velocity)
        x -= x.mean()
        if np.linalg.norm(x) > 1e6:
            break
    return np.linalg.norm(x)


@pytest.mark.parametrize("parallel", [False, True])
@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("num_workers", [8, 16])
def test_differences_between_workers_shrink_below_the_largest_rate_and_grow_above_it(num_workers, momentum, parallel):
    graph = weigh(ring_based(num_workers))
    limit = largest_rate(graph, momentum, parallel=parallel)
    matrix = mixing_matrix(graph)
    assert spread_after(matrix, momentum, 0.98 * limit, parallel=parallel) < 0.5
    if limit < 2 * (1 + momentum):  # otherwise the mean of all is what grows first
        assert spread_after(matrix, momentum, 1.02 * limit, parallel=parallel) > 2


def test_the_serial_order_of_the_ring_based_graph_bears_little_momentum():
    """Its smallest eigenvalue over 16 workers is -0.462: 0.32 instead of All-Reduce's 3.8."""
    graph = weigh(ring_based(16))
    assert largest_rate(graph, 0.9, parallel=False) == pytest.approx(0.3165, abs=1e-4)
    assert largest_rate(graph, 0.9, parallel=True) == pytest.approx(1.0224, abs=1e-3)
