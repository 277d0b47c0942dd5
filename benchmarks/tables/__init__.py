"""What tables of their own route cost: memory."""
