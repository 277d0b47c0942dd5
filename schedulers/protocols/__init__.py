"""Protocols as pure state machines: one protocol a file, driven by verify, virtual time and the runtime alike."""
