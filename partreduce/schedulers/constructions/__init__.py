"""Constructions from the literature, one topic per file; `schedulers.catalogue` lists them."""
