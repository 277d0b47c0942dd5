"""Protocols as pure state machines, driven by the explorer, by virtual time and by the runtime."""
