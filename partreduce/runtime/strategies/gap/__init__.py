"""Run strategy `neighbor` with an iteration gap: the worker of Hop (Luo et al., ASPLOS 2019); start at `means`."""
