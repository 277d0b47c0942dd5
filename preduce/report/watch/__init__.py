"""What `preduce run --watch` shows while workers run."""
