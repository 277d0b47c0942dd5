"""The cost model: α–β communication cost of a phase, steady speed as an event graph, sampling, models of stragglers."""
