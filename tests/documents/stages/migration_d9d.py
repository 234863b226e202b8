# in process
from stage import Lines

lines = Lines()
# after
assert len(loader) == 4
