"""Measurements, and what is too slow or too special for the test suite. A package, so that no other one hides it."""
