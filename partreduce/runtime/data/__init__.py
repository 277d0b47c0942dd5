"""Divide a data set over workers."""
