"""Making datasets: writers of shards, their indices, and many of them at once."""
