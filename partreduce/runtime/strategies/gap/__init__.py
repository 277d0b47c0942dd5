"""Strategy `neighbor` with a gap: the worker of Hop (Luo et al., ASPLOS 2019) at run time; `means` puts it together."""
