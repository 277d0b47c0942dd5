"""Send bytes and notes to other workers: worlds and their groups, all-reduce algorithms, messages, store."""
