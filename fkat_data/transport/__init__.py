"""Microbatches across the process boundary: bytes in shared memory, envelopes on a pipe.

A worker's ``codec`` takes the tensors out of a microbatch and writes them into a ``segment``; the rest is an envelope, which
goes through the ``channel``: a pipe, and a ``ring`` of shared memory for small messages. The trainer decodes views of the
segment; when the last one dies, a credit goes back. Begin with ``encode`` and ``channel.Channel``.
"""
