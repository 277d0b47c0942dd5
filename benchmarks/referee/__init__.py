"""What the tool does, recorded as small files, and compared with what a later checkout does."""
