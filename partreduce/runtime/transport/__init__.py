"""How bytes and notes reach other workers: worlds and their groups, forms of a sum, messages, notes in the store."""
