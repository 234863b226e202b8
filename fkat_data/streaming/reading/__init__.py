"""Read a sample by its number: find its shard, fetch it and keep it open. Internal to ``fkat_data.streaming``.

Open to other packages: ``catalog``, ``file_pattern``, ``index_tree``, ``open_shards``, ``read_commit``,
``shard_source``, ``stream``.
"""
