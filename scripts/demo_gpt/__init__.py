"""The parts of the demonstration that are not about data."""
