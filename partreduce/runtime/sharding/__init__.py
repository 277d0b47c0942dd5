"""Place embedding tables separately: with rows sharded over the workers, or with gradients of touched rows gathered."""
