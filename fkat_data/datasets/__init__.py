"""Datasets that a DataLoaderFactory opens for a shard."""
