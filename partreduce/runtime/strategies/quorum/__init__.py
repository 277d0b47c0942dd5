"""Run partial all-reduces, as workers of eager-SGD (Li et al., PPoPP 2020) do; read `gradients` first."""
