"""Start workers on this machine as torchrun does, supervise them, and clean up after them: `partreduce run`."""
