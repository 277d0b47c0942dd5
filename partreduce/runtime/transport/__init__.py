"""Communicate between workers: groups, all-reduce algorithms, one-sided messages, and the run's key-value store."""
