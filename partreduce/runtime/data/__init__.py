"""Which part of the data a worker trains on."""
