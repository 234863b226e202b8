"""Read a sample by its number: find its shard, fetch it and keep it open. Internal to ``fkat_data.streaming``."""
