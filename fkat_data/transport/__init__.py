"""Microbatches across the process boundary: bytes in shared memory, envelopes on a pipe.

Open to other packages: ``anonymous``, ``channel``, ``codec``, ``definitions``, ``digest``, ``memory_limit``,
``segment``.
"""
