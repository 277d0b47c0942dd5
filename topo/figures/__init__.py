"""Figures of a schedule: contraction, disagreement, drift, spectral gaps."""
