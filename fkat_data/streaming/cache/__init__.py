"""A node's copies of shards, shared by any number of processes and jobs: what is in the directory is the truth."""
