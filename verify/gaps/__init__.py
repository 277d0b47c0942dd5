"""Iteration gaps: how far the workers of Hop can drift apart in steps, and the queues that this takes.

Self-loops: a worker always has its own update, so whether N_in counts the worker itself (as Hop's paper does) changes
neither the backup needs (|N_in| − backup updates) nor any bound; graphs here are kept without self-loops.
"""
