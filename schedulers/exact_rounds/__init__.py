"""Exact consensus in the fewest rounds: bounds, constructions, and the searches behind the found ones."""
