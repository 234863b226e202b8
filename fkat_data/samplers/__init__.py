"""Shards and the order in which a rank gets them."""
