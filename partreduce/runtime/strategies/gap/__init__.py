"""Run strategy `neighbor` with an iteration gap, as workers of Hop (Luo et al., ASPLOS 2019) do; read `means` first."""
