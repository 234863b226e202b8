"""The engine under every loader; the package ``loaders`` has its faces.

A plan's tasks go by ``prefetch`` to workers of the ``worker_pool``; what they make comes back through ``delivery``, which
moves it to the device, hands it to the caller and counts it: the position is all that a state says. ``recovery`` decides
about workers that die or stall, ``agreement`` whether ranks are one run. Begin with the constructor of ``engine.Engine``.
"""
