"""Microbatches across the process boundary: bytes in shared memory, envelopes on a pipe."""
