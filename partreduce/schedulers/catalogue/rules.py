"""Catalogue entries of rules, and All-Reduce: phases for any number of nodes, whose files fit on a page at any size."""

from __future__ import annotations

from functools import partial

from partreduce.schedulers.constructions import preconditions
from partreduce.schedulers.entry import Entry, Parameter
from partreduce.schedulers.rules import grids, nested
from partreduce.topo.cluster import Cluster
from partreduce.topo.strategies.allreduce import AllReduce


def _all_reduce(_: Cluster, every: int) -> AllReduce:
    return AllReduce(steps_per_round=every)


_rule = partial(Entry, kind="rule")

RULES = (
    _rule(
        name="prague-figure-10",
        summary="The published static schedule: one head per node meets globally, the rest average inside their node.",
        source="Luo et al., Prague: heterogeneity-aware asynchronous decentralized training, ASPLOS 2020, Figure 10",
        make=nested.figure_10,
        unsupported_reason=partial(preconditions.shared_nodes, "Figure 10 averages"),
        condition="2 or more workers on the largest node",
        degree="up to the number of nodes − 1",
        period="4",
        metrics="4 workers a node: contraction √3/2 for every even number of nodes ≥ 4, 3√3/8 for 2",
    ),
    _rule(
        name="prague-inter-intra",
        summary="Head workers meet across nodes while the others average inside; then every node averages.",
        source="Luo et al., Prague, ASPLOS 2020: inter-intra synchronization, here without randomness",
        make=nested.inter_intra,
        unsupported_reason=partial(preconditions.shared_nodes, "the intra phase averages"),
        condition="2 or more workers on the largest node",
        degree="up to the number of nodes − 1",
        period="2",
    ),
    Entry(
        name="allreduce",
        summary="All workers average together, each step (as DDP does) or every H steps.",
        source="Patarasuk and Yuan, Bandwidth optimal all-reduce algorithms, JPDC 2009",
        kind="allreduce",
        make=_all_reduce,
        parameters=(
            Parameter(name="every", default=1, minimum=1, maximum=10**6, help="steps between two averages (H)"),
        ),
        degree="n − 1",
        period="1",
        metrics="contraction 0; consensus distance (n−1)/n · (H−1)/2",
    ),
    Entry(
        name="local-sgd",
        summary="H steps alone, then one average over all workers: 1/H of the traffic, more consensus distance.",
        source="Stich, Local SGD converges fast and communicates little, ICLR 2019",
        kind="allreduce",
        make=_all_reduce,
        parameters=(
            Parameter(name="every", default=4, minimum=2, maximum=10**6, help="steps between two averages (H)"),
        ),
        degree="n − 1",
        period="1",
        metrics="contraction 0; consensus distance (n−1)/n · (H−1)/2",
    ),
    _rule(
        name="node-then-all",
        summary=(
            "Cheap averages inside each node, a global one now and then: little traffic, nearly free on shuffled data."
        ),
        source="hierarchical local SGD: Lin et al., Don't use large mini-batches, use local SGD, ICLR 2020, section 5",
        make=nested.node_then_all,
        unsupported_reason=partial(nested.lone_workers_unsupported_reason, "node rounds do nothing"),
        parameters=(
            Parameter(
                name="node_rounds",
                default=3,
                minimum=1,
                maximum=10**5,
                help="rounds inside the nodes before a global one",
            ),
        ),
        condition="2 or more workers on the largest node",
        degree="n − 1 in global rounds",
        period="node_rounds + 1",
        metrics="contraction 0; 4x4 with 3 node rounds: consensus distance 9/32",
    ),
    _rule(
        name="pairs-pairs-all",
        summary="Pairs inside each node (the cheapest groups there are), then one global average.",
        source="this project; pairs as in Shi et al., Finite-time convergent gossiping, IEEE/ACM ToN 2016",
        make=nested.pairs_pairs_all,
        unsupported_reason=partial(nested.lone_workers_unsupported_reason, "there are no pairs inside nodes"),
        parameters=(
            Parameter(
                name="pair_rounds", default=2, minimum=1, maximum=10**5, help="rounds of pairs before a global one"
            ),
        ),
        condition="2 or more workers on the largest node",
        degree="n − 1 in global rounds",
        period="pair_rounds + 1",
        metrics="contraction 0; 4x4: drift 23/48 (worker), 5/4 (node)",
    ),
    _rule(
        name="hierarchy",
        summary="Node, rack and cluster averages nested: each level runs several times before the next larger one.",
        source="hierarchical local SGD: Lin et al., Don't use large mini-batches, use local SGD, ICLR 2020",
        make=nested.hierarchy,
        unsupported_reason=nested.hierarchy_unsupported_reason,
        parameters=(
            Parameter(
                name="levels",
                kind="ints",
                help="racks x nodes in a rack x …; auto: as the switches say, else as square as possible",
            ),
            Parameter(
                name="rounds", default=2, minimum=1, maximum=1000, help="rounds of a level before the next larger one"
            ),
        ),
        condition="2 or more levels (workers on a node, nodes in a rack, racks)",
        degree="n − 1 in global rounds",
        period="with L levels above the node and k rounds: k^L + k^(L−1) + … + 1",
        metrics="contraction 0",
    ),
    _rule(
        name="rotating-heads",
        summary=(
            "As prague-inter-intra, but the head changes, so that every worker's network card carries the same load."
        ),
        source="this project, after Luo et al., Prague, ASPLOS 2020: inter-intra synchronization",
        make=nested.rotating_heads,
        unsupported_reason=nested.rotating_heads_unsupported_reason,
        condition="2 to 256 workers on the largest node",
        degree="up to the number of nodes − 1",
        period="2 × workers on a node",
    ),
    _rule(
        name="node-digits",
        summary="Exact consensus in one phase per digit of the node number, with groups of whole nodes.",
        source="hyper-cuboid over nodes; see hyper-cuboid",
        make=grids.node_digits,
        unsupported_reason=grids.node_digits_unsupported_reason,
        parameters=(
            Parameter(name="radices", kind="ints", help="factors of the number of nodes; auto: its prime factors"),
        ),
        condition="2 or more nodes",
        degree="workers on a node × radix − 1",
        period="number of radices",
        metrics="exact (contraction 0) on equally sized nodes",
    ),
    _rule(
        name="hyper-cuboid",
        summary=(
            "Exact consensus in the fewest phases that plain group means allow; one axis of a grid of workers a phase."
        ),
        source="mixed-radix grid; k-peer hyper-hypercube of Takezawa et al., Beyond exponential graph, NeurIPS 2023",
        make=grids.hyper_cuboid,
        unsupported_reason=grids.hyper_cuboid_unsupported_reason,
        parameters=(
            Parameter(
                name="max_group",
                minimum=2,
                help="largest group; auto: a node, or the largest prime factor of n if larger",
            ),
            Parameter(
                name="factors", kind="ints", help="the grid's sides; auto: as few as possible, along nodes if it fits"
            ),
        ),
        condition="every prime factor of n is at most max_group",
        degree="largest side − 1",
        period="number of sides",
        metrics="exact (contraction 0)",
    ),
)
