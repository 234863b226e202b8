"""What a ``DataLoader`` asks of the frameworks that may drive it, without importing any: who is asking, and for what."""
