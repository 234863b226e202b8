"""What runs where the data is made: a process of its own, or the caller's own thread.

A task comes in, microbatches go out: ``produce`` makes them and knows no process; ``serve`` pumps it in a worker, ``inline``
in the caller's thread. The trainer's end of a worker is ``spawn``; ``process`` starts it, from a ``template`` if it can.
``messages`` has what both ends say to one another. Begin with ``produce.produce``. Nothing is exported: a trainer without
workers imports ``inline``, and must not import what only processes need.
"""
