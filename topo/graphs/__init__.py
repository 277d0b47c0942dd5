"""Topologies: fixed graphs over the workers as edge arrays, one family a file; their weights live in `weights`."""

from preduce.topo.graphs.base import Graph as Graph
