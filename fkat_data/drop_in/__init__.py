"""torch's DataLoader, its arguments and behaviour, over this library's engine.

Open to other packages: ``data_loader``.
"""
