"""Average a model over workers: flat buckets, gradients, buffers and optimizer state, reducers, and the mean model."""
