"""How long things take: the α–β cost of a phase, the schedule as a timed event graph, sampling, published models."""
