"""What runs where the data is made: a process of its own, or the caller's own thread.

A task comes in, microbatches go out: ``produce`` makes them and knows no process; ``inline`` pumps it in the caller's
thread, ``threads`` in several, ``remote`` on another machine, and the package ``process`` in worker processes. ``messages``
has what both ends say to one another. Begin with ``produce.produce``. Nothing is exported: a trainer without workers imports
``inline``, and must not import what only processes need.
"""
