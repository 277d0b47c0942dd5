"""Rule families grouped by topic, written with `algebra`; `schedulers.catalogue.rules` lists them."""
