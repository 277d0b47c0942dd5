"""Catalogue entries of fixed graphs, whose period is one round; `topo.graphs` builds and weighs them."""

from __future__ import annotations

from functools import partial

from partreduce.schedulers.constructions import fixed, preconditions
from partreduce.schedulers.entry import SEED, Entry, Parameter
from partreduce.topo.arithmetic.whole_numbers import ceil_log
from partreduce.topo.graphs.named import (
    complete,
    double_ring,
    exponential,
    grid,
    hop_figure_21,
    hypercube,
    random_regular,
    ring,
    ring_based,
    star,
    torus,
)
from partreduce.topo.graphs.weights import METHODS

WEIGHTS = Parameter(
    name="weights", kind="text", default="metropolis", choices=tuple(METHODS), help="how edges are weighed"
)
SHAPE = Parameter(name="shape", kind="ints", help="rows x columns; auto: as square as possible")
_graph = partial(Entry, kind="graph", period="1")

GRAPHS = (
    _graph(
        name="ring",
        summary="Two neighbors a worker: the least traffic of all fixed graphs, and the slowest consensus.",
        source="Lian et al., Can decentralized algorithms outperform centralized algorithms?, NeurIPS 2017",
        make=partial(fixed.neighbor_averaging, ring),
        unsupported_reason=partial(preconditions.at_least, 3, "a ring has at least 3 workers; use allreduce for 2"),
        parameters=(WEIGHTS,),
        condition="n ≥ 3",
        degree="2",
        metrics="slem gap 1 − max_k |1 + 2cos(2πk/n)|/3 ≈ 4π²/(3n²)",
    ),
    _graph(
        name="ring-based",
        summary="A ring whose workers also receive from the most distant worker.",
        source="Luo et al., Hop: heterogeneity-aware decentralized training, ASPLOS 2019",
        make=partial(fixed.neighbor_averaging, ring_based),
        unsupported_reason=partial(preconditions.multiple_of, 2, least=4, called="an even number ≥ 4"),
        parameters=(WEIGHTS,),
        condition="n even, ≥ 4",
        degree="3",
        metrics="n = 8: hop gap 2/3, with self-loops 1/2; n = 16: hop gap 0.1953",
    ),
    _graph(
        name="double-ring",
        summary="Two ring-based graphs joined worker to worker.",
        source="Luo et al., Hop: heterogeneity-aware decentralized training, ASPLOS 2019",
        make=partial(fixed.neighbor_averaging, double_ring),
        unsupported_reason=partial(preconditions.multiple_of, 4, least=8, called="a multiple of 4 from 8 on"),
        parameters=(WEIGHTS,),
        condition="n divisible by 4, ≥ 8",
        degree="4",
    ),
    _graph(
        name="hop-figure-21",
        summary="Three graphs over 8 workers on machines of 4, 2 and 2, with gaps that the paper prints.",
        source="Luo et al., Hop: heterogeneity-aware decentralized training, ASPLOS 2019, Figure 21",
        make=partial(fixed.neighbor_averaging, lambda _, setting: hop_figure_21(setting)),
        unsupported_reason=fixed.figure_21_unsupported_reason,
        parameters=(
            Parameter(
                name="setting",
                kind="text",
                default="a",
                choices=("a", "b", "c"),
                help="a: ring-based; b: one gateway worker a machine; c: links at different workers",
            ),
            WEIGHTS,
        ),
        condition="n = 8",
        degree="3 (a), up to 5 (b), up to 4 (c)",
        metrics="hop gaps 2/3, 0.268192, 0.268848",
    ),
    _graph(
        name="clustered",
        summary="All workers of a node exchange with one another, and few edges join the nodes.",
        source="after Luo et al., Hop: heterogeneity-aware decentralized training, ASPLOS 2019, section 7.3.6",
        make=fixed.clustered_nodes,
        unsupported_reason=fixed.clustered_unsupported_reason,
        parameters=(
            Parameter(
                name="inside",
                kind="text",
                default="complete",
                choices=("complete", "ring"),
                help="how the workers of a node are joined",
            ),
            Parameter(
                name="across",
                kind="text",
                default="ring",
                choices=("ring", "complete"),
                help="how the nodes are joined",
            ),
            Parameter(name="links", default=1, minimum=1, maximum=1024, help="edges between two nodes that are joined"),
            Parameter(
                name="ends",
                kind="text",
                default="spread",
                choices=("spread", "gateway"),
                help="spread: each edge across ends at its own workers, as far as there are enough; gateway: all "
                "edges across at the first worker of each node",
            ),
            WEIGHTS,
        ),
        condition="at least 2 nodes",
        degree="workers of the node − 1, and the edges across",
        metrics="nodes of 4, 2 and 2 workers: hop gap 0.268848, with gateways 0.268192",
    ),
    _graph(
        name="torus",
        summary="Workers on a grid that closes in both directions: four neighbors each.",
        source="folklore; metrics as in Ying et al., NeurIPS 2021",
        make=partial(fixed.neighbor_averaging, partial(fixed.rectangular, torus, 3)),
        unsupported_reason=partial(preconditions.rectangle, 3),
        parameters=(SHAPE, WEIGHTS),
        condition="n = a·b with a, b ≥ 3",
        degree="4",
        metrics="slem gap 1 − max |1 + 2cos(2πi/a) + 2cos(2πj/b)|/5",
    ),
    _graph(
        name="grid",
        summary="Workers on a rectangle, with the neighbors that exist.",
        source="folklore; metrics as in Ying et al., NeurIPS 2021",
        make=partial(fixed.neighbor_averaging, partial(fixed.rectangular, grid, 2)),
        unsupported_reason=partial(preconditions.rectangle, 2),
        parameters=(SHAPE, WEIGHTS),
        condition="n = a·b with a, b ≥ 2",
        degree="up to 4",
    ),
    _graph(
        name="star",
        summary="All workers exchange with worker 0 only; what a parameter server looks like as a graph.",
        source="folklore",
        make=partial(fixed.neighbor_averaging, star),
        parameters=(WEIGHTS,),
        condition="any n",
        degree="n − 1 at the hub, 1 elsewhere",
        metrics="Metropolis weights: contraction 1 − 1/n",
    ),
    _graph(
        name="complete",
        summary="Every worker exchanges with every other: the mean in one round, at n − 1 messages a worker.",
        source="folklore",
        make=partial(fixed.neighbor_averaging, complete),
        unsupported_reason=fixed.complete_unsupported_reason,
        parameters=(WEIGHTS,),
        condition="n ≤ 5000",
        degree="n − 1",
        metrics="exact (contraction 0)",
    ),
    _graph(
        name="hypercube",
        summary="Neighbors differ in one bit: logarithmic degree and gap, all edges at once.",
        source="folklore; metrics as in Ying et al., NeurIPS 2021",
        make=partial(fixed.neighbor_averaging, lambda count: hypercube(ceil_log(count))),
        unsupported_reason=partial(preconditions.power_of_two, ""),
        parameters=(WEIGHTS,),
        condition="n = 2^d",
        degree="log₂ n",
        metrics="slem gap 2/(1 + log₂ n)",
    ),
    _graph(
        name="exponential",
        summary="Directed edges to the workers 1, 2, 4, … further on: logarithmic degree, large gap, any n.",
        source="Ying et al., Exponential graph is provably efficient, NeurIPS 2021",
        make=partial(fixed.neighbor_averaging, exponential),
        parameters=(WEIGHTS,),
        condition="any n",
        degree="⌈log₂ n⌉",
        metrics="slem gap 2/(1 + ⌈log₂ n⌉) for even n, larger for odd n",
    ),
    _graph(
        name="de-bruijn",
        summary="A fixed directed graph that reaches the exact mean: log_m n rounds with m edges a worker.",
        source="Delvenne, Carli, Zampieri, Optimal strategies in the average consensus problem, 2009",
        make=fixed.de_bruijn_graph,
        unsupported_reason=preconditions.power_of_base,
        parameters=(
            Parameter(name="base", minimum=2, help="m, edges a worker; auto: the smallest of which n is a power"),
        ),
        condition="n = m^L",
        degree="m",
        metrics="W^L = J exactly, although ‖W − J‖₂ = 1 for L > 1",
    ),
    _graph(
        name="random-regular",
        summary="Every worker has the same number of random neighbors: nearly the largest gap for its degree.",
        source="Friedman 2008 (near-Ramanujan); pairing model of Bollobás 1980",
        make=partial(fixed.neighbor_averaging, random_regular),
        unsupported_reason=fixed.random_regular_unsupported_reason,
        parameters=(Parameter(name="degree", default=4, minimum=2, help="neighbors a worker"), SEED, WEIGHTS),
        condition="n·d even, d < n",
        degree="d",
        metrics="second singular value about (1 + 2√(d−1))/(d + 1)",
    ),
)
