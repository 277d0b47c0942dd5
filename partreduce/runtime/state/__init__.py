"""Save and restore the state of a run: checkpoints, and the state that a joining worker copies."""
