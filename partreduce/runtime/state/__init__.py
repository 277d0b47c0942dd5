"""What outlives a run: checkpoints and saved state."""
