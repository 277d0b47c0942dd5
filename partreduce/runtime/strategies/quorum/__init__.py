"""Run partial collectives: the workers of eager-SGD (Li et al., PPoPP 2020); `gradients` is the entry point."""
