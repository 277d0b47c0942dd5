"""The catalogue as tables: one row for every family of schedules, with its conditions, source and known metrics.

A row says which function builds the family (in `topo.graphs`, `schedulers.rules` or `schedulers.constructions`), for
which clusters it exists and what is known of it. `schedulers.registry` finds rows by name.
"""
