"""Strategies without common rounds as options: each is run in virtual time, and its steps are priced by what it did."""
