"""Measurements, and tests that are too slow or special for the test suite; a package, so that no other one hides it."""
