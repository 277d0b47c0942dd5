"""Exact consensus in the fewest rounds: constructions, and the bounds that prove them best.

`fewest` is the entry: plain means of groups (mixed radix) times relaxed pairs, for any number of workers, with the
bound that proves it best or shows how far it may be off. It draws on

* `lower_bounds`: no schedule needs fewer rounds; each bound names its argument (docs/exact-bounds.md);
* `pair_constructions`: relaxed pairs put together from smaller schedules; `euclid_slides`, two rows that slide along
  each other; `known_rounds`, what searches found.

A round of relaxed pairs is a matching: a pair (i, j, a) moves both workers by the weight a towards each other, which is
the relax factor 2a. docs/exact-rounds.md tells the whole story.
"""
