"""Proofs, certificates, the independent checker and the protocol explorer."""
