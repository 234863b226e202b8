"""What Python, torch and the operating system are asked for in one way: interruptions, ranks, machines, lifetimes.

``interruption`` imports nothing of this package, so that each module can; the others raise errors of ``fkat_data.errors``.
Begin with ``interruption.genuine``. Nothing is exported: each module is imported for itself.
"""
