"""List the catalogue as tables: one row for every family of schedules, with its conditions, source and metrics.

A row says which function builds the family (in `topo.graphs`, `schedulers.rules` or `schedulers.constructions`), for
which clusters it exists, and its known metrics. `schedulers.registry` finds rows by name.
"""
