"""File formats: one description, one opener and one reader of rows for each, for datasets and streams alike.

``formats`` has the table of formats and opens a shard by it; ``shard`` is what an index says of one and what an open one
can do; then one module a format. Bytes come from ``opening`` (a path or a URI) or ``mapping`` (a file of this machine).
Readers trust no file: what contradicts itself or its index is an error that names file, location, expected and found.
``arrow`` and ``parquet`` need pyarrow, and are not imported with the package: ``open_shard`` imports them.
"""
