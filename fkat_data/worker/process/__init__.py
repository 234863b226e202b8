"""Workers as processes: where they come from, what they run, and the trainer's end of each.

``forkserver`` holds the template, ``importer_process`` and ``parent_process`` what comes after it; ``child`` and ``handle``
start a process and watch it. ``main`` is what a worker runs, ``serve`` its loop; ``process_client`` is the trainer's end.
Begin with ``process_client.ProcessWorker``. Nothing is exported: a trainer without workers imports nothing of it.
"""
