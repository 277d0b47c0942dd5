"""What is connected to what and when: cluster, topologies, schedules and their JSON, mixing, spectra, timing."""

if __name__ != "partreduce.topo":  # the folder's own name would make a second copy of every class in it
    raise ImportError("this folder is the package partreduce.topo; import it by that name")
