"""The catalogue: one row for every family of schedules, with its conditions, source and metrics.

A row names the function that builds the family (in `topo.graphs`, `schedulers.rules` or `schedulers.constructions`),
the clusters for which it exists, and its known metrics. `schedulers.registry` finds rows by name.
"""
