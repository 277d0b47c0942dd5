"""The front door: public API and command line."""
