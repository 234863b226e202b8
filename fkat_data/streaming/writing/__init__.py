"""Writing datasets: writers of shards and indices, in one process or in parallel. Internal.

Open to other packages: ``jsonl_writer``, ``lines``, ``mds_writer``, ``merge``, ``natural_order``, ``parallel``,
``xsv_writer``.
"""
