"""Microbatches onto the device that the caller computes on."""
