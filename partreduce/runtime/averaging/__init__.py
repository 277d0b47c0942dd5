"""What is averaged: buckets of the flat model, gradients, piggybacked tensors, the mean model; reducers, P-Reduce."""
