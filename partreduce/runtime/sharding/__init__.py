"""Exchange embedding tables apart from the model: shard their rows, or gather the gradients of rows in use."""
