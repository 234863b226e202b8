"""Pure values of the plan: which shard comes next, and what is left after a stop."""
