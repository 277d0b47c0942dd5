"""What is proved about exact consensus beside the rounds themselves, which lie in schedulers/exact_rounds.

`enumeration` lists all matchings that may do, by CP-SAT; `weights` multiplies rounds out, or proves by algebra that no
weights make them exact; `means` has the fewest rounds of plain means, with the bounds that prove it.
`benchmarks.exact_rounds` runs them.
"""
