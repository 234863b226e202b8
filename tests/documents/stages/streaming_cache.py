from pathlib import Path

Path("data").mkdir()
Path("data/shard.00000.mds").write_bytes(b"a shard")
Path("cache").mkdir()
# after
assert version.recorded == "version 2"
