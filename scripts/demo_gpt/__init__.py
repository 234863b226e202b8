"""The parts of the demo that are not about loading data."""
