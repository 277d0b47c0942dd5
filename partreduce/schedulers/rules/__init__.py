"""Rule families grouped by topic; `algebra` fits them to a cluster, and `schedulers.catalogue.rules` lists them."""
