def main():
    pass


# after
from stage import ShardedDataLoader

with ShardedDataLoader(...) as loader:
    assert len(list(loader)) == 40
