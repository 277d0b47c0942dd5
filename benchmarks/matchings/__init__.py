"""Searches for exact consensus by relaxed pairs, which found the rounds in schedulers/exact_rounds/known_rounds.py.

Who meets whom comes from `enumeration` (all matchings, by CP-SAT), from chance (`search`), or from rounds that a turn
of the workers leaves as they are (`cyclic`); `weights` finds the weights, by least squares in batches (`fit`), or
proves that there are none. `means` has the fewest rounds of plain means. `benchmarks.exact_rounds`
runs them.
"""
