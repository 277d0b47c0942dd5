"""Exact consensus in the fewest rounds: constructions, the bounds that prove them best, and the searches behind them.

`fewest` is the entry: plain means of groups (mixed radix), or relaxed pairs for any number of workers, each with the
bound that proves it best or shows how far it may be off. It draws on

* `lower_bounds`: no schedule needs fewer rounds; each bound names its argument (docs/exact-bounds.md);
* `pair_constructions`: relaxed pairs put together from smaller schedules; `euclid_slides`, two rows that slide along
  each other; `known_rounds`, what searches found;
* the searches, which say what they tried: `pair_search` runs them all, over `matchings` that CP-SAT enumerates, over
  random ones, and over rounds that a turn of the workers leaves as they are (`cyclic_search`). Given who meets whom,
  `pair_weights` finds the weights or proves that there are none, by least squares in batches (`weight_fit`).

A round of relaxed pairs is a matching: a pair (i, j, a) moves both workers by the weight a towards each other, which is
the relax factor 2a. docs/exact-rounds.md tells the whole story.
"""
