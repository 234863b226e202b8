"""Pure values of the plan: which task comes next, and what is left after a stop.

``shard_plan`` turns a sampler into tasks, or what other numbers of ranks have left of an epoch. A ``ResumeState`` is
what a rank's caller has received; ``state`` writes it as plain values and reads them back. Tasks go to the
loader's look-ahead, resume states come from its deliveries. ``iteration`` counts what a caller has received. Begin with ``shard_plan.Plan``. Nothing is exported: workers
import ``position`` alone.
"""
