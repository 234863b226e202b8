# in process
from stage import SHARDS, factory

# after
assert len(seen) == len(set(seen)) == 400
