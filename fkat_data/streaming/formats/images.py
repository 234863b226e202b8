"""Encodings of images, one or several: as pixels, JPEG or PNG."""

import io
import struct
from pathlib import Path
from typing import Any, ClassVar, cast

from fkat_data.requirement import required
from fkat_data.streaming.formats.encoding import Encoding, EncodingError

__all__ = ["ImageFileEncoding", "ImageListEncoding", "JpegArrayEncoding", "PixelsEncoding"]

_SIZE = struct.Struct("<3I")
_COMMON = ("JPEG", "PNG", "GIF", "BMP", "PPM")
#: Pillow starts another program to decode these: bytes of unknown origin must not.
_OF_PROGRAMS = ("EPS", "WMF")
#: Bytes of a pixel in Pillow's own packing, where they are whole.
_PIXEL_BYTES = {
    **dict.fromkeys(("L", "P"), 1),
    **dict.fromkeys(("LA", "La", "PA", "I;16", "I;16L", "I;16B", "I;16N"), 2),
    **dict.fromkeys(("RGB", "YCbCr", "LAB", "HSV"), 3),
    **dict.fromkeys(("RGBA", "RGBa", "RGBX", "CMYK", "I", "F"), 4),
}


class PixelsEncoding(Encoding):
    """An image as its size, mode and pixels; what else Pillow knows of it, such as a palette, is lost."""

    def encode(self, value: Any) -> bytes:
        """Return an image's pixels behind its size and mode."""
        image = _image(value)
        mode = image.mode.encode()
        return _SIZE.pack(*image.size, len(mode)) + mode + image.tobytes()

    def decode(self, data: memoryview) -> Any:
        """Return a ``PIL.Image.Image``."""
        if len(data) < _SIZE.size:
            raise EncodingError(f"{len(data)} bytes are no image")
        width, height, mode_bytes = _SIZE.unpack_from(data)
        if mode_bytes > len(data) - _SIZE.size:
            raise EncodingError(f"a mode of {mode_bytes} bytes in an image of {len(data)}")
        mode = str(data[_SIZE.size : _SIZE.size + mode_bytes], "utf-8")
        pixels = data[_SIZE.size + mode_bytes :]
        # Before Pillow sees the size: it would make room for it.
        if mode == "1":
            needed = (width + 7) // 8 * height
        elif mode in _PIXEL_BYTES:
            needed = width * height * _PIXEL_BYTES[mode]
        else:
            raise EncodingError(f"no image has the mode {mode!r}")
        if needed != len(pixels):
            raise EncodingError(
                f"{width} x {height} pixels of mode {mode!r} in {len(pixels)} bytes instead of {needed}"
            )
        return _pillow().frombytes(mode, (width, height), bytes(pixels))


class ImageFileEncoding(Encoding):
    """An image as a file of one format.

    Args:
        kind: ``JPEG`` or ``PNG``: what is written; whatever Pillow reads is read.
    """

    is_checked: ClassVar[bool] = False

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def encode(self, value: Any) -> bytes:
        """Return an image's file; a JPEG image that came from a file is that file, not compressed a second time."""
        image = _image(value)
        path = getattr(image, "filename", None)
        if self._kind == "JPEG" and image.format == "JPEG" and path and Path(path).is_file():
            return Path(path).read_bytes()
        buffer = io.BytesIO()
        try:
            image.save(buffer, format=self._kind)
        except Exception as error:
            raise EncodingError(f"an image that {self._kind} can hold ({error})") from error
        return buffer.getvalue()

    def decode(self, data: memoryview) -> Any:
        """Return a ``PIL.Image.Image`` whose pixels are decoded when they are asked for."""
        return _opened(data)


class ImageListEncoding(Encoding):
    """A list of images of one encoding.

    Args:
        element: Encoding of each.
    """

    is_checked: ClassVar[bool] = False

    def __init__(self, element: Encoding) -> None:
        self._element = element

    def encode(self, value: Any) -> bytes:
        """Return the images' bytes behind their sizes."""
        if not isinstance(value, (list, tuple)):
            raise EncodingError("a list of images")
        images = cast("list[Any]", value)
        return b"\0\0\0\0" + _joined([_passed(self._element, image) for image in images])

    def decode(self, data: memoryview) -> list[Any]:
        """Return the images."""
        if bytes(data[:4]) != b"\0\0\0\0":
            raise EncodingError("a list of images begins with four zero bytes")
        return [self._element.decode(part) for part in _parts(data[4:])]


class JpegArrayEncoding(Encoding):
    """A sequence of JPEG files that are given as bytes."""

    is_checked: ClassVar[bool] = False

    def encode(self, value: Any) -> bytes:
        """Return the files behind their sizes; none at all would not be readable."""
        expected = "a list of JPEG files as bytes, at least one"
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
            raise EncodingError("an array of no images")
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
            return pillow.open(io.BytesIO(data), formats=_COMMON)
        except pillow.UnidentifiedImageError:
            pillow.init()
            others = [kind for kind in pillow.ID if kind not in _OF_PROGRAMS]
            return pillow.open(io.BytesIO(data), formats=others)
    except Exception as error:
        raise EncodingError(f"no image that Pillow can open: {error}") from error


def _passed(element: Encoding, value: Any) -> bytes:
    return value if isinstance(value, bytes) else element.encode(value)


def _joined(files: list[bytes]) -> bytes:
    return struct.pack(f"<{len(files) + 1}I", len(files), *map(len, files)) + b"".join(files)


def _parts(data: memoryview) -> list[memoryview]:
    if len(data) < 4:
        raise EncodingError(f"{len(data)} bytes hold no number of images")
    (count,) = struct.unpack_from("<I", data)
    if count > (len(data) - 4) // 4:
        raise EncodingError(f"{count} images in {len(data)} bytes")
    sizes = struct.unpack_from(f"<{count}I", data, 4)
    if sum(sizes) != len(data) - 4 * (count + 1):
        raise EncodingError(f"{count} images of {sum(sizes)} bytes in {len(data)} bytes")
    place, parts = 4 * (count + 1), list[memoryview]()
    for size in sizes:
        parts.append(data[place : place + size])
        place += size
    return parts
