"""Send tensors and notes to other workers: worlds and groups, all-reduce algorithms, mailboxes, and the store."""
