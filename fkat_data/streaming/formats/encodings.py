"""All encodings, by name."""

from collections.abc import Callable
from functools import lru_cache

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

__all__ = ["ENCODINGS", "encoding_of"]

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


@lru_cache(maxsize=1024)
def encoding_of(name: str) -> Encoding:
    """Return the encoding with a name.

    Raises:
        EncodingError: The name is unknown. The message lists the valid ones.
    """
    family, *parts = name.split(":") if len(name) <= _LONGEST_NAME else [""]
    if family == "ndarray":
        return NDArrayEncoding.of_name(parts)
    if name not in ENCODINGS:
        raise EncodingError(f"one of {', '.join(ENCODINGS)} or ndarray[:DTYPE[:D0,D1]]")
    return ENCODINGS[name]()
