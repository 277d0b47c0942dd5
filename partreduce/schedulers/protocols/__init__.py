"""Define protocols as pure state machines, driven by verify, by virtual time and by the runtime."""
