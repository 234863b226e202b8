"""All encodings, by name: those of this package, and those that users register."""

from collections.abc import Callable
from functools import lru_cache
from typing import cast

from fkat_data.errors import ConfigurationError
from fkat_data.registry import Registry
from fkat_data.streaming.formats.encoding import Encoding, EncodingError
from fkat_data.streaming.formats.images import (
    ImageFileEncoding,
    ImageListEncoding,
    JpegArrayEncoding,
    PixelsEncoding,
)
from fkat_data.streaming.formats.ndarray import NDArrayEncoding
from fkat_data.streaming.formats.objects import JsonEncoding, PickleEncoding
from fkat_data.streaming.formats.scalars import SCALAR_DTYPES, IntEncoding, ScalarEncoding
from fkat_data.streaming.formats.text import (
    BytesEncoding,
    StringDecimalEncoding,
    StringEncoding,
    StringFloatEncoding,
    StringIntEncoding,
)

__all__ = ["ENCODINGS", "encoding_of", "register_encoding"]

_LONGEST_NAME = 1_000

#: Constructor of each encoding. ``ndarray`` has its dtype and shape in the name, see ``encoding_of``.
ENCODINGS: dict[str, Callable[[], Encoding]] = {
    "bytes": BytesEncoding,
    "str": StringEncoding,
    "int": IntEncoding,
    **{name: lambda name=name: ScalarEncoding(name) for name in SCALAR_DTYPES},
    "str_int": StringIntEncoding,
    "str_float": StringFloatEncoding,
    "str_decimal": StringDecimalEncoding,
    "pil": PixelsEncoding,
    "jpeg": lambda: ImageFileEncoding("JPEG"),
    "png": lambda: ImageFileEncoding("PNG"),
    "list[pil]": lambda: ImageListEncoding(PixelsEncoding()),
    "list[jpeg]": lambda: ImageListEncoding(ImageFileEncoding("JPEG")),
    "list[png]": lambda: ImageListEncoding(ImageFileEncoding("PNG")),
    "jpeg_array": JpegArrayEncoding,
    "jpegarray": JpegArrayEncoding,
    "json": JsonEncoding,
    "pkl": PickleEncoding,
}
_FAMILY = "ndarray"
_registered: Registry[Callable[[], Encoding]] = Registry("encoding", lambda name: name in ENCODINGS or name == _FAMILY)


def register_encoding(name: str, make: Callable[[], Encoding]) -> None:
    """Let columns of MDS shards have an encoding of your own, in this process and in all that it starts for its data.

    Args:
        name: Its name, in ``MDSWriter(columns=...)`` and in the index. A program that reads the dataset must register
            it, too.
        make: Makes the encoding: the class itself, or a function without arguments.

    Raises:
        ConfigurationError: ``make`` makes no encoding, or the name is malformed or taken.
    """
    if not callable(make) or not isinstance(cast("object", make()), Encoding):
        raise ConfigurationError("make", make, "a subclass of Encoding, or a function that returns an Encoding")
    _registered.add(name, make)


def encoding_of(name: str) -> Encoding:
    """Return the encoding with a name.

    Raises:
        EncodingError: The name is unknown. The message lists the valid ones.
    """
    make = _registered.get(name)
    return _own_encoding(name) if make is None else make()


@lru_cache(maxsize=1024)
def _own_encoding(name: str) -> Encoding:
    family, *parts = name.split(":") if len(name) <= _LONGEST_NAME else [""]
    if family == _FAMILY:
        return NDArrayEncoding.of_name(parts)
    if name not in ENCODINGS:
        known = ", ".join((*ENCODINGS, *_registered.names))
        raise EncodingError(f"one of {known} or ndarray[:DTYPE[:D0,D1]]; register_encoding adds your own")
    return ENCODINGS[name]()
