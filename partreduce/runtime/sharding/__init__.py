"""Separately placed tables: embeddings whose rows lie on one worker each, or whose touched rows are gathered."""
