"""Conversion between graphs of networkx and of partreduce."""

import networkx as nx
import numpy as np

from partreduce.topo.graphs import Graph


def ours(graph):
    """Return the edges of a networkx graph on the nodes 0..n−1 as our graph."""
    pairs = np.array(list(graph.edges()), dtype=np.int64).reshape(-1, 2)
    make = Graph.directed if graph.is_directed() else Graph.undirected
    return make(graph.number_of_nodes(), pairs[:, 0], pairs[:, 1])


def theirs(graph):
    """Return our graph in networkx: undirected if every edge exists in both directions."""
    result = nx.Graph() if graph.is_undirected else nx.DiGraph()
    result.add_nodes_from(range(graph.num_workers))
    result.add_edges_from(zip(graph.sources.tolist(), graph.targets.tolist(), strict=True))
    return result
