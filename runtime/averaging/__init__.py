"""What is averaged and committed: the flat model, the reducer, commits, the mean model, P-Reduce, drift correction."""
