"""What `partreduce run --watch` shows while workers run."""
