"""Writing datasets: writers of shards and indices, in one process or in parallel. Internal."""
