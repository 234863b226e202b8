"""What is on disk: index, shards, columns, compression, hashes; reading them without trusting them."""
