"""Topologies: fixed graphs over the workers as edge arrays, grouped by topic as in networkx; `weights` weighs them."""

from partreduce.topo.graphs.base import Graph as Graph
