"""Protocols as pure state machines, which the explorer, the simulator and the runtime all run."""
