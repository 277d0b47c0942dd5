"""Run one worker: handshake of its settings, steps and rounds, operations of all workers, and shutdown."""
