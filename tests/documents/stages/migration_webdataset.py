# in process
import io
import tarfile
from pathlib import Path

Path("shards").mkdir()
for shard in range(2):
    with tarfile.open(f"shards/00{shard}.tar", "w", format=tarfile.USTAR_FORMAT) as archive:
        for number in range(20):
            for kind in ("txt", "cls"):
                member = tarfile.TarInfo(f"{number:03}.{kind}")
                content = b"%d" % (20 * shard + number)
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
seen = []


def train(texts, labels):
    seen.extend(labels.tolist())


# after
assert sorted(seen) == list(range(40))
