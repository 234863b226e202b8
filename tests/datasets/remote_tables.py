"""Files of each kind, for a store that says which bytes of them were asked for."""

import io
import json
import tarfile

import numpy as np

from fkat_data.datasets import JsonDataset, TarDataset, TokenDocuments, TokenWindows

NUM_SAMPLES, ROWS_OF_A_GROUP = 200, 40


def lines():
    return {"file": "".join(json.dumps({"n": n, "text": "x" * 100}) + "\n" for n in range(NUM_SAMPLES)).encode()}


def members():
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w") as archive:
        for number in range(NUM_SAMPLES):
            for extension, size in ("cls", 3), ("bin", 700):
                member = tarfile.TarInfo(f"{number:04}.{extension}")
                member.size = size
                archive.addfile(member, io.BytesIO(b"%03d" % number if size == 3 else bytes(size)))
    return {"file": content.getvalue()}


def tokens():
    return {"file": np.arange(NUM_SAMPLES * 64, dtype=np.uint16).tobytes()}


def documents():
    lengths = np.full(NUM_SAMPLES, 64, np.int32)
    index = b"".join(
        (
            b"MMIDIDX\0\0" + (1).to_bytes(8, "little") + b"\x08",
            NUM_SAMPLES.to_bytes(8, "little") + (NUM_SAMPLES + 1).to_bytes(8, "little"),
            lengths.tobytes(),
            (np.arange(NUM_SAMPLES, dtype=np.int64) * 128).tobytes(),
            np.arange(NUM_SAMPLES + 1, dtype=np.int64).tobytes(),
        )
    )
    return {"file.bin": tokens()["file"], "file.idx": index}


#: By name: the files, how they are opened, and the bytes of a sample.
KINDS = {
    "json lines": (lines, lambda: JsonDataset("counting://file"), 121),
    "tar": (members, lambda: TarDataset("counting://file"), 703),
    "one of a tar's members": (members, lambda: TarDataset("counting://file", ["cls"]), 3),
    "windows of tokens": (tokens, lambda: TokenWindows("counting://file", 64, dtype="uint16"), 128),
    "documents of tokens": (documents, lambda: TokenDocuments("counting://file.bin"), 128),
}
