"""Convert JSON lines, separated values, Parquet, Arrow and folders to datasets of shards.

Open to other packages: ``convert``.
"""
