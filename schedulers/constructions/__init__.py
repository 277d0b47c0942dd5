"""Constructions: schedules of the literature that are not rules, one a file."""
