"""Datasets in shards that are read in an order that no world changes."""
