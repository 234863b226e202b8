"""Encodings of one or several images as pixels, JPEG or PNG."""

import io
import struct
from pathlib import Path
from typing import Any, ClassVar, cast

from fkat_data.interruption import genuine
from fkat_data.requirement import required
from fkat_data.streaming.formats.encoding import Encoding, EncodingError

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
