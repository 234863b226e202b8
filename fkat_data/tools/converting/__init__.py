"""Convert JSON lines, separated values, Parquet, Arrow, tar files and folders to datasets of shards."""
