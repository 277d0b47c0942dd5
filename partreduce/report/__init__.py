"""Draw pictures and write reports."""
