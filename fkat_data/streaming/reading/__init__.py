"""From a sample's number to its bytes: which shard has it, where the shard is, and who keeps it open."""
