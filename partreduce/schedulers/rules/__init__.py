"""Families of rules, one topic per file; `schedulers.catalogue.rules` lists them.

A rule gives the groups of each phase by digits of the node's number, for any number of nodes; `algebra` turns it into
the schedule's groups on a given cluster, also one with unequal nodes.
"""
