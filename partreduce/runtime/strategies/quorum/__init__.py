"""Run partial all-reduces: the workers of eager-SGD (Li et al., PPoPP 2020); start at `gradients`."""
