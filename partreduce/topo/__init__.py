"""Cluster and schedule, as values: topologies, strategies, their JSON, mixing matrices, metrics and the cost model."""

if __name__ != "partreduce.topo":  # the folder's own name would make a second copy of every class in it
    raise ImportError("this folder is the package partreduce.topo; import it by that name")
