"""Each extension has its decoder; bytes that it cannot decode are an error, whatever they are."""

import io
import pickle

import numpy as np
import pytest
import torch
from archive_examples import archive, index
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fkat_data.errors import ConfigurationError, ShardCorruptError
from fkat_data.files.tar import DECODERS, UNSAFE, checked_decode, decoder_names


def saved(array, **options):
    file = io.BytesIO()
    np.lib.format.write_array(file, array, **options)
    return file.getvalue()


def test_decoders_are_chosen_by_the_last_part_of_an_extension():
    columns = ("cls", "flac", "jpeg", "json", "npy", "pth", "pyd", "seg.png", "txt", "webp")
    chosen = decoder_names("a.tar", columns, None)
    assert list(chosen.values()) == [
        *("integer", "bytes", "image", "json", "npy", "torch", "pickle", "image", "text", "image")
    ]
    assert {name for name, decoder in chosen.items() if decoder in UNSAFE} == {"pth", "pyd"}
    assert decoder_names("a.tar", columns, {"pth": "bytes"}) == {**chosen, "pth": "bytes"}
    assert set(decoder_names("a.tar", columns, "bytes").values()) == {"bytes"}
    with pytest.raises(ConfigurationError, match=r"'gif': expected extensions in a\.tar: cls"):
        decoder_names("a.tar", columns, {"gif": "image"})
    for wrong in ("pil", {"jpg": "pil"}, {1: "bytes"}, 3):
        with pytest.raises(ConfigurationError, match="decode = "):
            checked_decode(wrong)


def test_values_are_what_was_written():
    assert DECODERS["integer"](b" 7\n") == 7
    assert DECODERS["json"](b'{"a": [1]}') == {"a": [1]}
    assert DECODERS["text"]("été".encode()) == "été"
    assert DECODERS["pickle"](pickle.dumps({1})) == {1}
    for kind in ("JPEG", "PNG", "WEBP"):
        file = io.BytesIO()
        Image.new("RGB", (4, 3), "red").save(file, kind)
        assert DECODERS["image"](file.getvalue()).size == (4, 3)
    file = io.BytesIO()
    torch.save({"a": torch.arange(3)}, file)
    assert DECODERS["torch"](file.getvalue())["a"].tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6).reshape(2, 3),
        np.asfortranarray(np.arange(6.0).reshape(2, 3)),
        np.float16(3),
        np.zeros((0, 4)),
        np.array(["a", "bc"]),
        np.arange(3, dtype=">i4"),
        np.zeros(2, [("x", "i4"), ("y", "f8")]),
    ],
    ids=repr,
)
def test_arrays_are_those_of_numpy(array):
    for version in ((1, 0), (2, 0)):
        found = DECODERS["npy"](saved(array, version=version))
        assert found.dtype == array.dtype
        assert found.shape == array.shape
        assert (found == array).all()


def test_arrays_that_do_not_fit_their_bytes_are_refused_before_memory_is_taken():
    content = saved(np.zeros((10, 10), np.uint8))
    huge = content.replace(b"(10, 10)", b"(1<<40,)"), content.replace(b"(10, 10), ", b"(9999999999,10),"[:10])
    wrong = [*huge, content.replace(b"(10, 10)", b"(99, 99)"), content[:-1], content + b"1", b"", b"\x93NUMPY"]
    wrong.append(saved(np.array([{}]), allow_pickle=True))
    for damaged in wrong:
        with pytest.raises(Exception) as caught:
            DECODERS["npy"](damaged)
        assert not isinstance(caught.value, MemoryError)


@given(content=st.one_of(st.binary(max_size=100), st.binary(max_size=100).map(lambda rest: b"\x93NUMPY\1\0" + rest)))
def test_any_bytes_are_a_value_or_an_error_that_names_the_member(content):
    stored = archive([("a.bin", content)])
    found = index(stored)
    for name in set(DECODERS) - UNSAFE:
        try:
            (value,) = found.values("a.tar", "bin", [0], lambda start, stop: stored[start:stop], DECODERS[name])
        except ShardCorruptError as error:
            value = error.field
        assert name != "bytes" or value == content
        assert value is not None or content == b"null"
