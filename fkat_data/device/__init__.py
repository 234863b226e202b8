"""Microbatches onto the device that the caller computes on.

Open to other packages: ``choice``, ``host``, ``placement``.
"""
