"""How payloads and messages travel: communicators, forms of a sum, neighbour exchange, mailbox, rendezvous."""
