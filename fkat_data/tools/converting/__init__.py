"""Other people's files to shards: JSON lines, separated values, Parquet, Arrow, folders."""
