"""Pure values of the plan: which shard comes next, and the caller's position."""
