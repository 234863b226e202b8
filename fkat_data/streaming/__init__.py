"""Datasets that are streamed from shards on disk or in a store, in an order that is arithmetic."""
