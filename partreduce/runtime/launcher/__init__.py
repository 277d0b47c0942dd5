"""Start local workers as torchrun does, supervise them, and clean up after them: `partreduce run`."""
