"""Decode the members of tar archives: a decoder for each extension."""

import io
import json
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError
from fkat_data.requirement import required

DecoderName: TypeAlias = Literal["bytes", "image", "integer", "json", "npy", "pickle", "text", "torch"]

#: Pillow opens no other formats here: some of them start another program.
_IMAGES = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "PPM")
_BY_EXTENSION = {
    **dict.fromkeys(("jpg", "jpeg", "png", "webp"), "image"),
    "json": "json",
    "txt": "text",
    "cls": "integer",
    "npy": "npy",
    **dict.fromkeys(("pth", "pt"), "torch"),
    **dict.fromkeys(("pkl", "pickle", "pyd"), "pickle"),
}
#: The decoders that run code of the archive's author.
UNSAFE = frozenset({"torch", "pickle"})


def checked_decode(value: object) -> dict[str, str] | str | None:
    """Return an argument that says how to decode: one decoder for all extensions, one for each, or None.

    Raises:
        ConfigurationError: It names an unknown decoder.
    """
    given: Mapping[object, object] = cast("Any", value) if isinstance(value, Mapping) else {"": value}
    for name, decoder in given.items():
        if not isinstance(name, str) or (value is not None and decoder not in DECODERS):
            raise ConfigurationError("decode", decoder, f"a decoder or one for each extension: {', '.join(DECODERS)}")
    return cast("Any", dict(given) if isinstance(value, Mapping) else value)


def decoder_names(archive: str, columns: Sequence[str], decode: Mapping[str, str] | str | None) -> dict[str, str]:
    """Return the name of each extension's decoder.

    Args:
        archive: The archive, for messages.
        columns: The extensions.
        decode: One decoder for all extensions, or decoders that replace those chosen by extension.

    Raises:
        ConfigurationError: No member has an extension of ``decode``.
    """
    if isinstance(decode, str):
        return dict.fromkeys(columns, decode)
    for name in decode or ():
        if name not in columns:
            raise ConfigurationError("decode", name, f"extensions in {archive}: {', '.join(columns)}")
    # Of seg.png, the last part decides.
    chosen = {name: _BY_EXTENSION.get(name.rpartition(".")[2], "bytes") for name in columns}
    return {**chosen, **(decode or {})}


def _bytes(content: bytes) -> bytes:
    return content


def _image(content: bytes) -> Any:
    """Return a ``PIL.Image.Image``, which decodes its pixels on first use."""
    return required("PIL.Image", "streaming").open(io.BytesIO(content), formats=_IMAGES)


def _text(content: bytes) -> str:
    return content.decode()


def _integer(content: bytes) -> int:
    return int(content)


def _array(content: bytes) -> npt.NDArray[Any]:
    """Return a read-only array: a view of the bytes. An array of objects, which are pickles, is an error."""
    file = io.BytesIO(content)
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"the version of the NumPy file is {version}")
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, is_fortran, dtype = read(file)
    if dtype.hasobject:
        raise ValueError("an array of Python objects, which are pickles")
    # Compare first: numpy would allocate what the header declares.
    count = 1
    for length in shape:
        count *= length
    if min(shape, default=0) < 0 or count * dtype.itemsize != len(content) - file.tell():
        raise ValueError(f"shape {shape} of {dtype} does not fit {len(content) - file.tell()} bytes")
    flat = np.frombuffer(content, dtype, count, file.tell()) if count and dtype.itemsize else np.empty(count, dtype)
    return flat.reshape(shape, order="F" if is_fortran else "C")


def _pickle(content: bytes) -> Any:
    return pickle.loads(content)


def _torch(content: bytes) -> Any:
    # Imported here: a process that reads no tensors of files starts without it.
    import torch  # noqa: PLC0415 - see above

    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=False)


#: The decoders by name.
DECODERS: dict[str, Callable[[bytes], Any]] = {
    "bytes": _bytes,
    "image": _image,
    "integer": _integer,
    "json": json.loads,
    "npy": _array,
    "pickle": _pickle,
    "text": _text,
    "torch": _torch,
}
