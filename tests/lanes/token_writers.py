"""Writers of files of tokens, as other programs write them: each returns the file that holds the tokens."""

import struct

import numpy as np

MEGATRON_CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}


def bare(path, tokens, lengths):
    tokens.tofile(path.with_suffix(".bin"))
    return path.with_suffix(".bin")


def numpys(path, tokens, lengths):
    np.save(path.with_suffix(".npy"), tokens)
    return path.with_suffix(".npy")


def llm_c(path, tokens, lengths):
    magic, version, dtype = (20240520, 1, "<u2") if tokens.max(initial=0) < 1 << 16 else (20240801, 7, "<u4")
    header = np.zeros(256, "<i4")
    header[:3] = magic, version, len(tokens)
    path.with_suffix(".bin").write_bytes(header.tobytes() + tokens.astype(dtype).tobytes())
    return path.with_suffix(".bin")


def datatrove(path, tokens, lengths):
    tokens.astype("<u4").tofile(path.with_suffix(".ds"))
    np.cumsum(lengths).astype("<u8").tofile(f"{path.with_suffix('.ds')}.index")
    return path.with_suffix(".ds")


def fairseq(path, tokens, lengths, dtype="uint16"):
    """Write documents as fairseq does with ``--dataset-impl mmap``."""
    tokens = tokens.astype(dtype)
    code = {"uint32": 9, "uint64": 10}.get(dtype) or MEGATRON_CODES[dtype]
    header = struct.pack("<9sQBQ", b"MMIDIDX\0\0", 1, code, len(lengths))
    pointers = np.cumsum([0, *lengths])[: len(lengths)] * tokens.itemsize
    path.with_suffix(".idx").write_bytes(header + np.array(lengths, "<i4").tobytes() + pointers.astype("<i8").tobytes())
    tokens.tofile(path.with_suffix(".bin"))
    return path.with_suffix(".bin")


def megatron(path, tokens, lengths, sequences=None, dtype="uint16"):
    """Write documents of several sequences each, where ``sequences`` says how many."""
    tokens = tokens.astype(dtype)
    sequences = [1] * len(lengths) if sequences is None else sequences
    parts = []
    for length, count in zip(lengths, sequences, strict=True):
        parts += np.diff(np.linspace(0, length, count + 1).astype(int)).tolist()
    pointers = np.cumsum([0, *parts])[: len(parts)] * tokens.itemsize
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, MEGATRON_CODES[dtype], len(parts), len(lengths) + 1)
    arrays = np.array(parts, "<i4"), pointers.astype("<i8"), np.cumsum([0, *sequences]).astype("<i8")
    path.with_suffix(".idx").write_bytes(header + b"".join(array.tobytes() for array in arrays))
    tokens.tofile(path.with_suffix(".bin"))
    return path.with_suffix(".bin")
