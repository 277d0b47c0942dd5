"""Rule families: one a file, written with the algebra of `schedulers.rules.algebra`."""
