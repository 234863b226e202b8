"""Every encoding gives back what it was given, refuses what it cannot hold, and never reads beyond its bytes."""

import io
import math
import pickle

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from PIL import Image

from fkat_data.files.encoding import SCALAR_DTYPES, EncodingError
from fkat_data.files.encodings import ENCODINGS, encoding_of


def there_and_back(name, value):
    encoding = encoding_of(name)
    data = encoding.encode(value)
    assert encoding.size_bytes in (None, len(data))
    return encoding.decode(memoryview(data))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)
PLAIN = {
    "bytes": st.binary(),
    "str": st.text(),
    "int": st.integers(-(2**63), 2**63 - 1),
    "str_int": st.integers(),
    "str_float": st.floats(),
    "str_decimal": st.decimals(allow_nan=False),
    "json": JSON_VALUES,
    "pkl": st.tuples(st.text(), st.frozensets(st.integers())),
}


@pytest.mark.parametrize("name", PLAIN)
@given(data=st.data())
def test_plain_values_come_back_with_their_type(name, data):
    value = data.draw(PLAIN[name])
    found = there_and_back(name, value)
    assert type(found) is type(value)
    assert found == value or (math.isnan(found) and math.isnan(value))
    assert repr(found) == repr(value) or name == "pkl"


@pytest.mark.parametrize("name", SCALAR_DTYPES)
@given(data=st.data())
def test_scalars_come_back_bit_for_bit(name, data):
    value = data.draw(st_numpy.from_dtype(np.dtype(name)))
    found = there_and_back(name, value)
    assert found.dtype == value.dtype
    assert found.tobytes() == value.tobytes()
    if np.dtype(name).kind in "iu":
        assert there_and_back(name, int(value)) == value


SHAPES = st_numpy.array_shapes(min_dims=1, max_dims=5, max_side=5)
ARRAYS = st.sampled_from(SCALAR_DTYPES).flatmap(lambda dtype: st_numpy.arrays(dtype, SHAPES))


@given(array=ARRAYS)
@example(array=np.zeros((1, 256), np.int8))
@example(array=np.zeros((1, 65536), np.int8))
@example(array=np.zeros((1,) * 63, np.float16))
def test_arrays_come_back_whatever_their_name_tells_of_them(array):
    dimensions = ",".join(map(str, array.shape))
    for name in ("ndarray", "ndarray:", f"ndarray:{array.dtype}", f"ndarray:{array.dtype}:{dimensions}"):
        found = there_and_back(name, array)
        assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, array.shape, array.tobytes())


@given(array=ARRAYS)
def test_arrays_of_any_byte_order_and_strides_hold_the_same_values(array):
    padded = np.stack([array, array], axis=-1)
    for same in (np.asfortranarray(array), array.astype(array.dtype.newbyteorder(">")), padded[..., 0]):
        for name in ("ndarray", f"ndarray:{array.dtype}"):
            found = there_and_back(name, same)
            assert found.dtype == array.dtype
            np.testing.assert_array_equal(found, array)


MODES = [
    "1",
    "L",
    "P",
    "LA",
    "PA",
    "RGB",
    "RGBA",
    "RGBX",
    "RGBa",
    "La",
    "CMYK",
    "YCbCr",
    "LAB",
    "HSV",
    "I",
    "F",
    "I;16",
]


@pytest.mark.parametrize("mode", MODES)
@given(size=st.tuples(st.integers(1, 20), st.integers(1, 20)), seed=st.integers(0, 2**32 - 1))
def test_pixels_come_back(mode, size, seed):
    empty = Image.new(mode, size)
    pixels = np.random.default_rng(seed).bytes(len(empty.tobytes()))
    image = Image.frombytes(mode, size, pixels)
    found = there_and_back("pil", image)
    assert (found.mode, found.size, found.tobytes()) == (mode, size, image.tobytes())
    again = there_and_back("list[pil]", [image, empty])
    assert [each.tobytes() for each in again] == [image.tobytes(), empty.tobytes()]


def picture(kind="PNG"):
    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def test_png_files_hold_the_very_pixels():
    image = Image.open(io.BytesIO(picture()))
    assert there_and_back("png", image).tobytes() == image.tobytes()
    assert [each.tobytes() for each in there_and_back("list[png]", [image] * 3)] == [image.tobytes()] * 3
    assert there_and_back("list[png]", []) == []


def test_a_jpeg_from_a_file_is_not_compressed_again(tmp_path):
    (tmp_path / "picture.jpg").write_bytes(picture("JPEG"))
    with Image.open(tmp_path / "picture.jpg") as image:
        assert encoding_of("jpeg").encode(image) == picture("JPEG")
        (tmp_path / "picture.jpg").unlink()
        assert encoding_of("jpeg").encode(image)[:2] == b"\xff\xd8"


@pytest.mark.parametrize("kind", ["GIF", "BMP", "TIFF", "WEBP"])
def test_an_image_file_of_another_format_is_read_in_a_column_of_jpeg(kind):
    assert encoding_of("jpeg").decode(memoryview(picture(kind))).format == kind


def test_an_image_that_another_program_would_decode_is_refused():
    with pytest.raises(EncodingError, match="Pillow cannot open the image"):
        encoding_of("jpeg").decode(memoryview(picture("EPS")))


def test_jpeg_arrays_are_lists_of_ready_made_files():
    found = there_and_back("jpeg_array", [picture("JPEG")] * 2)
    assert [(each.format, each.size) for each in found] == [("JPEG", (7, 9))] * 2


def test_an_array_in_a_json_column_becomes_lists():
    assert there_and_back("json", np.arange(4).reshape(2, 2)) == [[0, 1], [2, 3]]


def test_numbers_that_fit_are_taken_whatever_their_type():
    assert there_and_back("int", np.int32(7)) == 7
    assert there_and_back("int", True) == 1
    assert there_and_back("uint8", 3.0) == 3
    assert there_and_back("float32", 1) == 1.0
    assert there_and_back("float16", float("inf")) == np.inf
    assert np.isnan(there_and_back("float64", float("nan")))


REFUSED = [
    *(("int", value) for value in (2**63, -(2**63) - 1, 1.5, "1", None)),
    *(("uint8", value) for value in (256, -1, 3.7, "3", None, [3], np.arange(2), float("nan"), float("inf"), 1j)),
    *(("float32", value) for value in (1e39, "1.0", None, [1.0], 1j)),
    *(("str", value) for value in (b"1", 1, None, "\ud800")),
    *(("bytes", value) for value in ("1", 1, [1])),
    *(("str_int", value) for value in (True, 1.0, "1", None)),
    *(("str_float", value) for value in (1, "1.0", None)),
    *(("str_decimal", value) for value in (1, 1.0, "1")),
    *(("json", value) for value in ({1, 2}, b"x", object())),
    ("pkl", lambda: None),
    *(("ndarray", value) for value in ([1], 1, np.float32(1), np.array(1), np.zeros((2, 0)), np.array(["a"]))),
    *(("ndarray", np.zeros(2, dtype)) for dtype in ("bool", "complex64", "datetime64[s]")),
    ("ndarray:int8", np.zeros(2, np.int16)),
    ("ndarray:int8:2,3", np.zeros((3, 2), np.int8)),
    *((name, value) for name in ("pil", "jpeg", "png") for value in ("picture.png", 1)),
    *((name, value) for name in ("list[pil]", "list[jpeg]", "list[png]") for value in (1, [1], Image.new("L", (1, 1)))),
    *(("jpeg_array", value) for value in ([], [1], b"jpeg")),
]


@pytest.mark.parametrize(("name", "value"), REFUSED, ids=[f"{name} {place}" for place, (name, _) in enumerate(REFUSED)])
def test_what_an_encoding_cannot_hold_is_refused(name, value):
    with pytest.raises(EncodingError):
        encoding_of(name).encode(value)


@pytest.mark.parametrize(
    "name", ["", "float128", "int:3", "ndarray::3", "ndarray:bool", "ndarray:int8:", "ndarray:int8:0"]
)
@pytest.mark.parametrize("more", ["", ":1", "x"])
def test_a_name_that_is_none_is_refused(name, more):
    with pytest.raises(EncodingError):
        encoding_of(name + more) if name + more != "ndarray:int8:1" else encoding_of("")


SAFE = [name for name in ENCODINGS if name != "pkl"]
VARIABLE = [name for name in [*SAFE, "ndarray", "ndarray:int16"] if encoding_of(name).size_bytes is None]


@pytest.mark.parametrize("name", VARIABLE)
@given(data=st.binary(max_size=60))
@example(data=b"")
@example(data=b"\x08\xfc" + b"\xff" * 60)
@example(data=b"\xff" * 40)
@example(data=b"\xff\xff\xff\x7f\xff\xff\xff\x7f\x01\0\0\0L")
@example(data=b"[" * 20_000)
@example(data=b"9" * 5_000)
def test_any_bytes_are_read_or_refused(name, data):
    try:
        encoding_of(name).decode(memoryview(data))
    except ValueError as error:
        assert str(error)  # noqa: PT017 - that it is one is the point, and that it may not be raised


def test_a_pickle_that_cannot_be_read_is_refused_as_any_bytes_are():
    assert not encoding_of("pkl").is_safe
    for data in (b"", b"\x80", pickle.dumps(print)[:-1], b"cnowhere\nnothing\n."):
        with pytest.raises(EncodingError, match="the pickle cannot be loaded"):
            encoding_of("pkl").decode(memoryview(data))
