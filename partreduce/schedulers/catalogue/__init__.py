"""The catalogue: every family of schedules, with its conditions, source and metrics.

An entry names the function that builds the family (in `topo.graphs`, `schedulers.rules` or `schedulers.constructions`),
the clusters for which it exists, and its known metrics. `schedulers.registry` finds entries by name.
"""
