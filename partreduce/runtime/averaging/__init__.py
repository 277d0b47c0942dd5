"""Average buckets of the flat model, gradients, piggybacked tensors and the mean model."""
