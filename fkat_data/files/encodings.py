"""All encodings, by name: those of this package, and those that users register."""

import io
import json
import pickle
import struct
from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, cast

import numpy as np
import numpy.typing as npt

from fkat_data.errors import ConfigurationError
from fkat_data.files.encoding import (
    SCALAR_DTYPES,
    Encoding,
    EncodingError,
    IntEncoding,
    NDArrayEncoding,
    ScalarEncoding,
)
from fkat_data.runtime.interruption import genuine
from fkat_data.runtime.machine import required
from fkat_data.runtime.registry import Registry

_SIZE = struct.Struct("<3I")
_COMMON_FORMATS = ("JPEG", "PNG", "GIF", "BMP", "PPM")
#: Pillow starts another program to decode these, which is unsafe for bytes of unknown origin.
_FORMATS_WITH_PROGRAMS = ("EPS", "WMF")
#: Bytes per pixel in Pillow's own packing, for the modes with whole bytes.
_PIXEL_BYTES = {
    **dict.fromkeys(("L", "P"), 1),
    **dict.fromkeys(("LA", "La", "PA", "I;16", "I;16L", "I;16B", "I;16N"), 2),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 3),
    **dict.fromkeys(("RGBA", "RGBa", "RGBX", "CMYK", "I", "F"), 4),
}


class PixelsEncoding(Encoding):
    """An image as its size, mode and pixels. Other information, such as a palette, is lost."""

    def encode(self, value: Any) -> bytes:
        """Return an image's size and mode, followed by its pixels."""
        image = _image(value)
        mode = image.mode.encode()
        return _SIZE.pack(*image.size, len(mode)) + mode + image.tobytes()

    def decode(self, data: memoryview) -> Any:
        """Return a ``PIL.Image.Image``."""
        if len(data) < _SIZE.size:
            raise EncodingError(f"{len(data)} bytes are too few for an image")
        width, height, mode_bytes = _SIZE.unpack_from(data)
        if mode_bytes > len(data) - _SIZE.size:
            raise EncodingError(f"the image states a mode of {mode_bytes} bytes, but has {len(data)} bytes in total")
        mode = str(data[_SIZE.size : _SIZE.size + mode_bytes], "utf-8")
        pixels = data[_SIZE.size + mode_bytes :]
        # Check the size first, because Pillow would allocate memory for it.
        if mode == "1":
            needed = (width + 7) // 8 * height
        elif mode in _PIXEL_BYTES:
            needed = width * height * _PIXEL_BYTES[mode]
        else:
            raise EncodingError(f"unknown image mode {mode!r}")
        if needed != len(pixels):
            raise EncodingError(f"{width} x {height} pixels of mode {mode!r} need {needed} bytes, found {len(pixels)}")
        return _pillow().frombytes(mode, (width, height), bytes(pixels))


class ImageFileEncoding(Encoding):
    """An image as a file.

    Args:
        kind: Format to write, ``JPEG`` or ``PNG``. Decoding accepts any format that Pillow decodes itself.
    """

    is_checked: ClassVar[bool] = False

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def encode(self, value: Any) -> bytes:
        """Return an image as a file. For a JPEG image that was opened from a file, return that file unchanged."""
        image = _image(value)
        path = getattr(image, "filename", None)
        if self._kind == "JPEG" and image.format == "JPEG" and path and Path(path).is_file():
            return Path(path).read_bytes()
        buffer = io.BytesIO()
        try:
            image.save(buffer, format=self._kind)
        except genuine(Exception) as error:
            raise EncodingError(f"an image that can be saved as {self._kind} ({error})") from error
        return buffer.getvalue()

    def decode(self, data: memoryview) -> Any:
        """Return a ``PIL.Image.Image``, which decodes its pixels on first use."""
        return _opened(data)


class ImageListEncoding(Encoding):
    """A list of images with one encoding.

    Args:
        element: Encoding of each image.
    """

    is_checked: ClassVar[bool] = False

    def __init__(self, element: Encoding) -> None:
        self._element = element

    def encode(self, value: Any) -> bytes:
        """Return the images' sizes, followed by their bytes."""
        if not isinstance(value, (list, tuple)):
            raise EncodingError("a list of images")
        images = cast("list[Any]", value)
        return b"\0\0\0\0" + _joined([_encoded(self._element, image) for image in images])

    def decode(self, data: memoryview) -> list[Any]:
        """Return the images."""
        if bytes(data[:4]) != b"\0\0\0\0":
            raise EncodingError("a list of images must begin with four zero bytes")
        return [self._element.decode(part) for part in _parts(data[4:])]


class JpegArrayEncoding(Encoding):
    """A list of JPEG files, given as bytes."""

    is_checked: ClassVar[bool] = False

    def encode(self, value: Any) -> bytes:
        """Return the files' sizes, followed by the files. Refuse an empty list, which could not be decoded."""
        expected = "a non-empty list of JPEG files as bytes"
        if not isinstance(value, (list, tuple)) or not value:
            raise EncodingError(expected)
        files = cast("list[Any]", value)
        if not all(isinstance(file, (bytes, bytearray, memoryview)) for file in files):
            raise EncodingError(expected)
        return _joined([bytes(file) for file in files])

    def decode(self, data: memoryview) -> list[Any]:
        """Return the images."""
        parts = _parts(data)
        if not parts:
            raise EncodingError("the list has no images")
        return [_opened(part) for part in parts]


def _pillow() -> Any:
    return required("PIL.Image", "streaming")


def _image(value: Any) -> Any:
    if not isinstance(value, _pillow().Image):
        raise EncodingError("a PIL.Image.Image")
    return value


def _opened(data: memoryview) -> Any:
    pillow = _pillow()
    try:
        try:
            return pillow.open(io.BytesIO(data), formats=_COMMON_FORMATS)
        except genuine(pillow.UnidentifiedImageError):
            pillow.init()
            others = [kind for kind in pillow.ID if kind not in _FORMATS_WITH_PROGRAMS]
            return pillow.open(io.BytesIO(data), formats=others)
    except genuine(Exception) as error:
        raise EncodingError(f"Pillow cannot open the image: {error}") from error


def _encoded(element: Encoding, value: Any) -> bytes:
    return value if isinstance(value, bytes) else element.encode(value)


def _joined(files: list[bytes]) -> bytes:
    return struct.pack(f"<{len(files) + 1}I", len(files), *map(len, files)) + b"".join(files)


def _parts(data: memoryview) -> list[memoryview]:
    if len(data) < 4:
        raise EncodingError(f"{len(data)} bytes are too few for the number of images")
    (count,) = struct.unpack_from("<I", data)
    if count > (len(data) - 4) // 4:
        raise EncodingError(f"{len(data)} bytes are too few for the sizes of {count} images")
    sizes = struct.unpack_from(f"<{count}I", data, 4)
    if sum(sizes) != len(data) - 4 * (count + 1):
        num_bytes = len(data) - 4 * (count + 1)
        raise EncodingError(f"{count} images need {sum(sizes)} bytes, found {num_bytes}")
    offset, parts = 4 * (count + 1), list[memoryview]()
    for size in sizes:
        parts.append(data[offset : offset + size])
        offset += size
    return parts


class BytesEncoding(Encoding):
    """Bytes, unchanged."""

    def encode(self, value: Any) -> bytes:
        """Return the bytes."""
        if not isinstance(value, (bytes, bytearray)):
            raise EncodingError("bytes")
        return bytes(value)

    def decode(self, data: memoryview) -> bytes:
        """Return a copy of the bytes."""
        return bytes(data)


class StringEncoding(Encoding):
    """A string as UTF-8."""

    def encode(self, value: Any) -> bytes:
        """Return the UTF-8 of a string."""
        try:
            return str.encode(value)
        except genuine(TypeError, UnicodeEncodeError):
            raise EncodingError("a string that UTF-8 can encode") from None

    def decode(self, data: memoryview) -> str:
        """Return the string."""
        return str(data, "utf-8")


class NumberTextEncoding(Encoding):
    """A number of any size as the text that Python makes of it, which decodes to the same number.

    Args:
        kind: The type of the numbers.
        expected: What a value must be, for messages.
    """

    def __init__(self, kind: type[Any], expected: str) -> None:
        self._kind = kind
        self._expected = expected

    def encode(self, value: Any) -> bytes:
        """Return the text of a number. Refuse a bool, because its text could not be decoded."""
        if isinstance(value, bool) or not isinstance(value, self._kind):
            raise EncodingError(self._expected)
        try:
            return str(self._kind(value)).encode()
        except genuine(ValueError) as error:
            raise EncodingError(f"{self._expected} that Python converts to text ({error})") from None

    def decode(self, data: memoryview) -> Any:
        """Return the number."""
        try:
            return self._kind(str(data, "utf-8"))
        except genuine(InvalidOperation):
            raise EncodingError("the text is not a decimal number") from None


class JsonEncoding(Encoding):
    """Any value that JSON can represent. A NumPy array becomes nested lists."""

    def encode(self, value: Any) -> bytes:
        """Return the JSON of a value."""
        try:
            return json.dumps(_plain(value)).encode()
        except genuine(TypeError, ValueError, RecursionError) as error:
            raise EncodingError(f"a value that JSON can represent ({error})") from None

    def decode(self, data: memoryview) -> Any:
        """Return the value."""
        try:
            return json.loads(str(data, "utf-8"))
        except genuine(RecursionError) as error:
            raise EncodingError("the JSON is nested too deeply") from error


class PickleEncoding(Encoding):
    """Any object that pickle supports. Decoding runs code that the file's author chose."""

    is_safe: ClassVar[bool] = False
    is_checked: ClassVar[bool] = False

    def encode(self, value: Any) -> bytes:
        """Return the pickle of an object."""
        try:
            return pickle.dumps(value)
        except genuine(Exception) as error:
            raise EncodingError(f"an object that can be pickled ({error})") from error

    def decode(self, data: memoryview) -> Any:
        """Return the object."""
        try:
            return pickle.loads(data)
        except genuine(Exception) as error:
            raise EncodingError(f"the pickle cannot be loaded: {type(error).__name__}: {error}") from error


def _plain(value: Any) -> Any:
    return cast("npt.NDArray[Any]", value).tolist() if isinstance(value, np.ndarray) else value


_LONGEST_NAME = 1_000

#: Constructor of each encoding. ``ndarray`` has its dtype and shape in the name, see ``encoding_of``.
ENCODINGS: dict[str, Callable[[], Encoding]] = {
    "bytes": BytesEncoding,
    "str": StringEncoding,
    "int": IntEncoding,
    **{name: lambda name=name: ScalarEncoding(name) for name in SCALAR_DTYPES},
    "str_int": lambda: NumberTextEncoding(int, "an int"),
    "str_float": lambda: NumberTextEncoding(float, "a float"),
    "str_decimal": lambda: NumberTextEncoding(Decimal, "a decimal.Decimal"),
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
