"""Rule families: one family a file, listed in the registry."""
