"""Protocols as pure state machines: driven by verify, by virtual time and by the run-time."""
