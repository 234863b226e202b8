"""Simulate a streaming run without data: what it waits for, fetches and caches, and what to change.

Open to other packages: ``quality``, ``remedies``, ``resplit``, ``result``, ``simulate_dataset``.
"""
