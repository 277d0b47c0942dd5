"""One strategy a file."""
