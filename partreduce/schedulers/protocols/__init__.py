"""Protocols as pure state machines: driven alike by verify, by virtual time and by the run-time."""
