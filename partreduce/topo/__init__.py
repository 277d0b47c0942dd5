"""Cluster and schedule, as values: topologies, strategies, their JSON, mixing matrices, metrics and the cost model."""

if __name__ != "partreduce.topo":  # `import topo` from inside the folder would create every class twice
    raise ImportError("this folder is the package partreduce.topo; import it by that name")
