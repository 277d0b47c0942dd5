"""Families of rules, one topic per file; `algebra` fits them to a cluster, `schedulers.catalogue.rules` lists them."""
