"""Makes schedules: rules, constructions, synthesis and protocols."""
