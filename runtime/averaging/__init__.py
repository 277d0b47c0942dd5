"""What is averaged and committed: buckets of the flat model, gradients, riders, reducers, the mean model, P-Reduce."""
