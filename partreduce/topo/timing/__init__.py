"""Time: the α–β cost of a phase, the schedule as a timed event graph, sampling, models of stragglers."""
