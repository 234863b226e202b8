"""Microbatches across the process boundary: bytes in shared memory, envelopes on a pipe.

Open to other packages: ``channel``, ``codec``, ``digest``, ``memory_limit``, ``segment``.
"""
