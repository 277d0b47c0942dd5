"""Save state that outlives a run: checkpoints and saved state."""
