"""Pure values of the plan: which shard comes next, and what is left after a stop.

Open to other packages: ``elastic``, ``elastic_plan``, ``place``, ``shard_plan``, ``state``, ``task``.
"""
