"""Partial collectives: the workers of eager-SGD (Li et al., PPoPP 2020) at run time; `gradients` puts them together."""
