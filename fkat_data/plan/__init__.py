"""Pure values of the plan: which shard comes next, and the caller's position.

Open to other packages: ``cursor``, ``elastic``, ``elastic_plan``, ``shard_plan``, ``state``, ``task``.
"""
