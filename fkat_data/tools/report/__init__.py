"""Turn a timeline into an HTML page with plots and a verdict in words.

Open to other packages: ``charts``, ``document``, ``page``, ``series``, ``style``, ``traced_run``.
"""
