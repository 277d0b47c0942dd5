"""Run strategy `neighbor` with a gap: the worker of Hop (Luo et al., ASPLOS 2019); `means` is the entry point."""
