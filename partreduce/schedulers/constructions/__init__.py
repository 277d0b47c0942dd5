"""Build constructions from the literature, grouped by topic; `schedulers.catalogue` lists them."""
