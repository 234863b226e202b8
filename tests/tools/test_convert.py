"""Files of every kind become datasets with the same rows."""

import datetime as dt
import errno
import gzip
import io
import itertools
import json
import os
import re
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from archive_examples import archive
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from fkat_data.errors import ConfigurationError, SampleError, ShardCorruptError, ShardNotFoundError
from fkat_data.streaming import LocalDataset
from fkat_data.tools import convert

ROWS = [{"id": number, "text": f"été {number}", "ratio": number / 7} for number in range(25)]


def read(directory):
    return list(LocalDataset(directory))


def encodings(directory):
    shards = json.loads((directory / "index.json").read_text())["shards"]
    ((names, kinds),) = {(tuple(shard["column_names"]), tuple(shard["column_encodings"])) for shard in shards}
    return dict(zip(names, kinds, strict=True))


def json_lines(rows):
    return "".join(f"{json.dumps(row)}\n" for row in rows).encode()


def separated(rows, separator):
    lines = [separator.join(rows[0]), *(separator.join(map(str, row.values())) for row in rows)]
    return "\r\n".join(lines).encode()


def parquet(rows, **options):
    buffer = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows) if isinstance(rows, list) else rows, buffer, **options)
    return buffer.getvalue()


def arrow(rows, opened=pa.ipc.new_stream):
    table = pa.Table.from_pylist(rows) if isinstance(rows, list) else rows
    buffer = io.BytesIO()
    with opened(buffer, table.schema) as writer:
        writer.write_table(table, max_chunksize=7)
    return buffer.getvalue()


FILES = {
    "rows.jsonl": json_lines(ROWS),
    "rows.ndjson": b"\n" + json_lines(ROWS).replace(b"}\n", b"}\r\n \n")[:-4],
    "rows.json.gz": gzip.compress(json_lines(ROWS)),
    "rows.jsonl.zst": zstandard.compress(json_lines(ROWS)),
    "rows.csv": separated(ROWS, ","),
    "rows.csv.gz": gzip.compress(b"\xef\xbb\xbf" + separated(ROWS, ",")),
    "rows.tsv": separated(ROWS, "\t"),
    "rows.parquet": parquet(ROWS, row_group_size=10),
    "rows.arrow": arrow(ROWS),
    "file.arrow": arrow(ROWS, pa.ipc.new_file),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_any_kind_becomes_a_dataset_with_its_rows(tmp_path, name):
    (tmp_path / name).write_bytes(FILES[name])
    assert convert([tmp_path / name], tmp_path / "out", size_limit=500) == len(ROWS)
    assert encodings(tmp_path / "out") == {"id": "int", "ratio": "float64", "text": "str"}
    assert read(tmp_path / "out") == ROWS


def test_the_tables_of_a_folder_are_taken_in_natural_order(tmp_path):
    (tmp_path / "data").mkdir()
    for number in (10, 2, 1):
        (tmp_path / "data" / f"part-{number}.parquet").write_bytes(parquet([{"id": number}]))
    (tmp_path / "data" / "part-11.PARQUET").write_bytes(parquet([{"id": 11}]))
    (tmp_path / "data" / "README.md").write_text("about")
    (tmp_path / "data" / "._part-1.parquet").write_text("what a file manager knows about it")
    convert([tmp_path / "data"], tmp_path / "out")
    assert [row["id"] for row in read(tmp_path / "out")] == [1, 2, 10, 11]


def test_the_working_directory_is_no_part_of_a_pattern(tmp_path, monkeypatch):
    folder = tmp_path / "runs [1]"
    folder.mkdir()
    (folder / "a b.jsonl").write_bytes(json_lines(ROWS))
    monkeypatch.chdir(folder)
    assert convert("*.jsonl", tmp_path / "out") == len(ROWS)


def converted_column(tmp_path, *files, **options):
    """The column "a" of a dataset that is made of files with these texts in it, each text beside another column."""
    tmp_path.mkdir(exist_ok=True)
    paths = [tmp_path / f"rows.{number}.csv" for number in range(len(files))]
    for path, texts in zip(paths, files, strict=True):
        path.write_text("".join(f"{text},k\n" for text in ("a", *texts)) if texts else "b\nk\n")
    convert(paths, tmp_path / "out", **options)
    return [row["a"] for row in read(tmp_path / "out")]


ARABIC = "\N{ARABIC-INDIC DIGIT ONE}"
ONES, HALVES, PRICES = ("1",) * 1_000, ("0.5",) * 1_000, ("1.10",) * 1_000
CHANGED = {
    ONES: ["007", "+007", "1_000", "x", "", "-0", "+491701234567", " 7", "7 ", ARABIC, "12E3", "1.0", "9" * 5_000],
    HALVES: [
        *("007.5", "9007199254740993", "1e999", "0_1.5", "12E3", "1e5", "5e-3", "+0.5", " 0.5", "0.5 ", f"{ARABIC}.5"),
        *("0.12345678901234567890", "1.10", "1.00", "5.", "Infinity", "NaN", "-nan", "0x1p3", "-", "."),
    ],
    PRICES: ["1.1", "1", "1.100", "1.1e1"],
}


@pytest.mark.parametrize(("numbers", "text"), [(numbers, text) for numbers, texts in CHANGED.items() for text in texts])
def test_a_text_that_a_number_would_change_stays_one_or_is_an_error_where_it_comes_late(tmp_path, numbers, text):
    with pytest.raises(ConfigurationError, match=r"'a'.*; row 1001 .*rows\.0\.csv has '.*columns={'a': 'str'}"):
        converted_column(tmp_path, (*numbers, text))
    assert converted_column(tmp_path / "again", (numbers[0], text)) == [numbers[0], text]


@pytest.mark.parametrize(("first", "late"), [("1", "true"), ("0.5", "false"), ("0.5", "9007199254740993")])
def test_a_late_value_of_json_that_a_number_would_change_is_an_error(tmp_path, first, late):
    lines = [f'{{"a": {value}}}' for value in (first, *(first,) * 1_000, late)]
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    with pytest.raises(ConfigurationError, match=r"'a'.*; row 1002 .*rows\.jsonl has .*columns={'a': 'json'}"):
        convert(tmp_path / "rows.jsonl", tmp_path / "out")
    convert(tmp_path / "rows.jsonl", tmp_path / "out", columns={"a": "json"})
    assert read(tmp_path / "out")[-1] == {"a": json.loads(late)}


def test_texts_of_numbers_keep_their_value(tmp_path):
    shortest = (*HALVES, "7", "-7", "9007199254740992", "1.5e300", "1.5E10", "1e-05", "inf", "nan", ".25", "-0")
    exact = (
        *HALVES,
        "0.1",
        "0.30000000000000004",
        "0.10000000000000001",
        "12.300000000000001",
        "-1e-07",
        "2.0",
        "-0.0",
    )
    fixed = ("1.10", "-2.00", "3.14", "1234567.89")
    scientific = tuple(f"{number:.18e}" for number in (0.1, -2.5, 1e-300, 0.0))  # as numpy.savetxt writes
    for number, texts in enumerate([shortest, exact, fixed, scientific]):
        found = converted_column(tmp_path / str(number), texts)
        assert list(map(repr, map(float, found))) == [repr(float(text)) for text in texts]


@pytest.mark.parametrize(
    "texts",
    [
        ("1.9", "1.10"),
        ("1", "1.10"),
        ("1", "1.0"),
        ("2e-10", "3e-10"),
        ("nan",),
        ("1", "nan"),
        ("12E3",),
        ("-0",),
        ("+1.5",),
    ],
)
@pytest.mark.parametrize("nulls", ["refuse", "json"])
def test_a_whole_column_is_text_where_one_would_change(tmp_path, texts, nulls):
    for number, order in enumerate((texts, texts[::-1])):
        assert converted_column(tmp_path / str(number), order, nulls=nulls) == list(order)


@given(
    st.lists(
        st.text(f"0123456789+-.eE _n{ARABIC}", max_size=6) | st.floats().map(str) | st.integers().map(str), min_size=1
    )
)
def test_a_number_says_all_that_its_text_said(texts):
    with TemporaryDirectory() as folder:
        kept = [text.replace("\n", "").replace(",", "") for text in texts]
        found = converted_column(Path(folder, "data"), kept)
    for text, value in zip(kept, found, strict=True):
        if isinstance(value, int):
            assert str(value) == text
        elif isinstance(value, float) and repr(float(value)) != text:
            assert re.fullmatch(r"-?[0-9]*(\.[0-9]+(e[+-]?[0-9]+)?)?", text, re.ASCII | re.IGNORECASE)
            assert float(text) == value
            if (digits := text.lower().partition("e")[0].partition(".")[2]).endswith("0") and len(digits) > 1:
                numbers = [other.lower().partition("e")[0].partition(".")[2] for other in kept]
                assert set(map(len, numbers)) == {len(digits)}


@pytest.mark.parametrize(
    ("encoding", "expected"), [("int", [1, 7]), ("float64", [1.0, 7.0]), ("json", [1, 7]), ("str", ["1", "007"])]
)
def test_a_chosen_encoding_takes_texts_as_python_does(tmp_path, encoding, expected):
    assert converted_column(tmp_path, ("1", "007"), columns={"a": encoding}) == expected


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ((("1",), ("007",)), ["1", "007"]),
        ((("1", ""), ("x",), ("2",)), ["1", "", "x", "2"]),
        ((("1", ""), ("2.5",)), [1, None, 2.5]),
        ((("1.5",), ("1.10",)), ["1.5", "1.10"]),
        ((("1",), ("9223372036854775808",)), [1, 1 << 63]),
        ((("1",), ("",)), [1, None]),
        (((), ("007", "8"), ("7", "")), [None, "007", "8", "7", ""]),  # the first file lacks the column
    ],
)
def test_files_that_differ_keep_their_texts(tmp_path, files, expected):
    assert converted_column(tmp_path, *files, nulls="json") == expected


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("1", "2.5", [1.0, 2.5]),
        ("2.5", "1", [2.5, 1.0]),
        ("1", "x", ["1", "x"]),
        ("1", "007", ["1", "007"]),
        ("1", "", ["1", ""]),
        ("1.5", "1.10", ["1.5", "1.10"]),
        ("1", "9223372036854775808", [1, 1 << 63]),
    ],
)
def test_texts_of_several_files_are_as_those_of_one(tmp_path, first, second, expected):
    assert converted_column(tmp_path / "apart", (first,), (second,)) == expected
    assert converted_column(tmp_path / "together", (first, second)) == expected


@pytest.mark.parametrize("late", ["1.10", "7.0"])
def test_a_late_text_is_compared_with_those_of_all_files(tmp_path, late):
    with pytest.raises(ConfigurationError, match=r"'a'.*; row 1001 .*rows\.1\.csv has '.*columns={'a': 'str'}"):
        converted_column(tmp_path, ("1.25", "7"), (*HALVES, late))


VALUES_OF_JSON = [
    "1",
    "2.5",
    "1.0",
    '"x"',
    "true",
    "null",
    "9223372036854775808",
    "9007199254740993",
    "[1]",
    '{"b": 1}',
]


@pytest.mark.parametrize("nulls", ["refuse", "json"])
@pytest.mark.parametrize(("first", "second"), [*itertools.permutations(VALUES_OF_JSON, 2)])
def test_values_of_json_of_several_files_are_as_those_of_one(tmp_path, first, second, nulls):
    apart, together = [f'{{"a": {value}}}\n' for value in (first, second)], tmp_path / "together.jsonl"
    for number, line in enumerate(apart):
        (tmp_path / f"{number}.jsonl").write_text(line)
    together.write_text("".join(apart))
    for name, files in {"0": [tmp_path / "0.jsonl", tmp_path / "1.jsonl"], "1": [together]}.items():
        convert(files, tmp_path / name, nulls=nulls)
        found = [row["a"] for row in read(tmp_path / name)]
        assert json.dumps(found) == f"[{first}, {second}]"  # 1, 1.0 and true are apart
    assert encodings(tmp_path / "0") == encodings(tmp_path / "1")


def test_files_without_rows_say_nothing_of_columns(tmp_path):
    (tmp_path / "0.csv").touch()
    (tmp_path / "1.csv").write_text("a,b\n")
    (tmp_path / "2.csv").write_text("a,b\n1,x\n")
    for nulls in ("refuse", "json"):
        convert([tmp_path / f"{number}.csv" for number in range(3)], tmp_path / nulls, nulls=nulls)
        assert encodings(tmp_path / nulls) == {"a": "int", "b": "str"}


def test_files_of_several_kinds_have_one_encoding_or_are_refused(tmp_path):
    (tmp_path / "a.csv").write_text("a,b\n1,x\n")
    (tmp_path / "a.jsonl").write_text('{"a": 2, "b": "y"}\n')
    (tmp_path / "a.parquet").write_bytes(parquet([{"a": 3, "b": "z"}]))
    files = [tmp_path / name for name in ("a.csv", "a.jsonl", "a.parquet")]
    convert(files, tmp_path / "out")
    assert read(tmp_path / "out") == [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}, {"a": 3, "b": "z"}]
    (tmp_path / "b.parquet").write_bytes(parquet([{"a": 3.5, "b": "z"}]))
    with pytest.raises(ConfigurationError, match=r"'a'.*is float64 in .*b\.parquet, and int in .*a\.csv: .*'json'"):
        convert([*files[:2], tmp_path / "b.parquet"], tmp_path / "refused")
    convert([*files, tmp_path / "b.parquet"], tmp_path / "chosen", columns={"a": "json"})
    assert [row["a"] for row in read(tmp_path / "chosen")] == [1, 2, 3, 3.5]


def test_several_processes_make_the_same_dataset(run_script, tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.jsonl").write_bytes(json_lines(ROWS[10 * number : 10 * number + 10]))
    done = run_script(
        f"""
from pathlib import Path
from fkat_data.tools import convert
if __name__ == "__main__":
    print(convert([Path({str(tmp_path)!r}, name) for name in ("0.jsonl", "1.jsonl", "2.jsonl")],
                  Path({str(tmp_path / "out")!r}), num_workers=2, compression=None))
"""
    )
    assert done.stdout == "25\n"
    assert read(tmp_path / "out") == ROWS


def images():
    buffer = io.BytesIO()
    Image.new("L", (3, 2), 7).save(buffer, "PNG")
    return buffer.getvalue()


COLUMNS = {
    "i8": (pa.int8(), [1, -2], "int8", [np.int8(1), np.int8(-2)]),
    "u64": (pa.uint64(), [1, 2**64 - 1], "uint64", [np.uint64(1), np.uint64(2**64 - 1)]),
    "f16": (pa.float16(), [np.float16(0.5), np.float16(2)], "float16", [np.float16(0.5), np.float16(2)]),
    "f32": (pa.float32(), [0.5, 2], "float32", [np.float32(0.5), np.float32(2)]),
    "price": (pa.decimal128(5, 2), [Decimal("1.20"), Decimal(0)], "str_decimal", [Decimal("1.20"), Decimal("0.00")]),
    "day": (pa.date32(), [dt.date(2026, 1, 2)] * 2, "str", ["2026-01-02"] * 2),
    "grid": (
        pa.list_(pa.list_(pa.float32(), 1), 2),
        [[[1], [2]], [[3], [4]]],
        "ndarray:float32:2,1",
        [np.float32([[1], [2]]), np.float32([[3], [4]])],
    ),
}


@pytest.mark.parametrize("name", COLUMNS)
@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_column_of_a_table_keeps_its_type(tmp_path, kind, name):
    arrow_type, values, encoding, expected = COLUMNS[name]
    table = pa.table({name: pa.array(values, arrow_type), "other": pa.array([1, 2])})
    (tmp_path / f"data.{kind}").write_bytes({"parquet": parquet, "arrow": arrow}[kind](table))
    convert([tmp_path / f"data.{kind}"], tmp_path / "out", only=[name])
    assert encodings(tmp_path / "out") == {name: encoding}
    for row, value in zip(read(tmp_path / "out"), expected, strict=True):
        assert type(row[name]) is type(value)
        np.testing.assert_array_equal(row[name], value)


def test_lists_of_numbers_are_cut_where_a_batch_is_a_slice_of_a_larger_one(tmp_path):
    lists = [list(range(number % 5 + 1)) for number in range(2_500)]
    table = pa.table({"tokens": pa.array(lists, pa.list_(pa.int32()))})
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "data.arrow").write_bytes(buffer.getvalue())
    convert([tmp_path / "data.arrow"], tmp_path / "out")
    assert [row["tokens"].tolist() for row in read(tmp_path / "out")] == lists


def test_a_file_of_a_folder_that_cannot_be_read_is_named(tmp_path):
    memory = Path("/proc/self/mem")  # its first bytes are of no page, and reading them fails as a broken disk does
    if not memory.exists():
        pytest.skip("this system shows no process's memory as a file")
    (tmp_path / "samples").mkdir()
    (tmp_path / "samples" / "a.txt").write_bytes(b"a")
    (tmp_path / "samples" / "b.txt").symlink_to(memory)
    with pytest.raises(OSError, match=r"samples/b\.txt") as caught:
        convert(tmp_path / "samples", tmp_path / "out")
    assert caught.value.errno == errno.EIO


def test_a_file_of_a_folder_that_is_gone_is_named(tmp_path):
    paths = [tmp_path / "samples" / f"{number:03}.txt" for number in range(150)]
    paths[0].parent.mkdir()
    for path in paths:
        path.write_bytes(b"a")
    with pytest.raises(ShardNotFoundError, match=r"samples/149\.txt.*is gone"):
        convert(tmp_path / "samples", tmp_path / "out", progress=lambda _: paths[-1].unlink(missing_ok=True))


@pytest.mark.parametrize("num_workers", [1, pytest.param(3, marks=pytest.mark.with_processes)])
def test_a_folder_of_files_is_a_dataset_of_their_contents(tmp_path, num_workers):
    for folder in ("data/.git", "elsewhere"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "data" / "cat").symlink_to(tmp_path / "elsewhere")
    for name in ("b.png", "cat/a.png", ".hidden", ".git/object"):
        (tmp_path / "data" / name).write_bytes(images())
    convert([tmp_path / "data"], tmp_path / "out", columns={"content": "png"}, num_workers=num_workers)
    rows = read(tmp_path / "out")
    assert [(row["path"], row["content"].size) for row in rows] == [("b.png", (3, 2)), ("cat/a.png", (3, 2))]


def test_the_first_rows_suggest_the_encodings(tmp_path):
    rows = [{"a": 1, "b": 1, "c": None, "d": 2**70, "e": [1]}, {"a": 2, "b": 1.5, "d": 3, "e": [2]}]
    (tmp_path / "rows.jsonl").write_bytes(json_lines(rows))
    convert([tmp_path / "rows.jsonl"], tmp_path / "out")
    assert encodings(tmp_path / "out") == {"a": "int", "b": "json", "c": "json", "d": "str_int", "e": "json"}
    assert read(tmp_path / "out") == [rows[0], {**rows[1], "c": None}]


BAD_FILES = [
    (
        "rows.jsonl",
        b'{"a": 1}\n{"a": \n',
        ShardCorruptError,
        "rows.jsonl': line 1 (from 0, blank lines not counted), at byte 9 of the text: ",
    ),
    ("rows.jsonl", b'{"a": 1}\n[1]\n', ConfigurationError, "rows.jsonl has another value: [1]"),
    ("rows.jsonl.gz", b"nonsense", ShardCorruptError, "rows.jsonl.gz': "),
    ("rows.csv.zst", zstandard.compress(b"a\n" + b"1\n" * 9)[:-6], ShardCorruptError, "in the middle of a frame"),
    ("rows.csv", b"a,b\n1\n", ShardCorruptError, "fewer or more values than the header"),
    (
        "rows.csv",
        b"a\n1\n\xff\n",
        ConfigurationError,
        "rows.csv': expected text in UTF-8; line 3 (from 1) has byte 0xff",
    ),
    ("rows.csv", b"\xef\xbb\xbfa\n" + "été\n".encode() * 300_000 + b"\xe9", ConfigurationError, "at byte 1,800,005, "),
    (
        "rows.csv",
        b'a,b\n"1\n",2\n"x" y,3\n',
        ShardCorruptError,
        "row 2 (from 1, without the header), which begins in line 4: ',' expected after '\"'; a value that begins with",
    ),
    (
        "rows.csv",
        b'a\n1\n"open\n2\n',
        ShardCorruptError,
        "rows.csv': row 2 (from 1, without the header), which begins in line 3: unexpected end of data",
    ),
    (
        "rows.tsv",
        b'a\tb"\n"c',
        ShardCorruptError,
        "rows.tsv': row 1 (from 1, without the header), which begins in line 2",
    ),
    ("rows.csv", b'"a\n1\n', ShardCorruptError, "rows.csv': the header: unexpected end of data"),
    (
        "rows.csv",
        b"a\n" + b"1\n" * 1_000 + b"7.0\n",
        ConfigurationError,
        "row 1001 (from 1, without the header)",
    ),
    ("rows.parquet", b"nonsense", ShardCorruptError, "rows.parquet': "),
    ("rows.jsonl", b'{"a": 1}\n' * 1_000 + b'{"a": "x"}\n', SampleError, "column 'a', value 'x': expected an int"),
    ("rows.jsonl", b'{"a": 1}\n' * 1_000 + b'{"a": 1, "b": 2}\n', SampleError, "column 'b', value <any>"),
    ("rows.xlsx", b"", ConfigurationError, "expected a file that ends in .jsonl"),
]


@pytest.mark.parametrize(("name", "content", "error", "text"), BAD_FILES, ids=lambda value: str(value)[:20])
def test_a_file_that_makes_no_sense_is_named_and_nothing_looks_whole(tmp_path, name, content, error, text):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(error, match=re.escape(text)) as caught:
        convert([tmp_path / name], tmp_path / "out")
    if error is SampleError:
        assert caught.value.__notes__ == [f"row 1000 (from 0) of {tmp_path / name}"]
    assert not (tmp_path / "out" / "index.json").exists()


@pytest.mark.parametrize("name", ["none.jsonl", "none.csv", "none.parquet", "none.arrow"])
def test_a_file_that_is_not_there_is_named(tmp_path, name):
    with pytest.raises(ShardNotFoundError, match=re.escape(name)):
        convert([tmp_path / name], tmp_path / "out")


def test_arguments_are_checked(tmp_path):
    (tmp_path / "rows.jsonl").write_bytes(json_lines(ROWS))
    (tmp_path / "empty").mkdir()
    wrong = [
        (([],), {}, "paths = []"),
        (([tmp_path / "rows.jsonl"],), {"kind": "excel"}, "kind = 'excel'"),
        (([tmp_path / "rows.jsonl"],), {"columns": {"none": "int"}}, "columns = 'none': expected one of 'id'"),
        (([tmp_path / "rows.jsonl"],), {"only": ["none"]}, "columns = 'none'"),
    ]
    for paths, arguments, text in wrong:
        with pytest.raises(ConfigurationError, match=re.escape(text)):
            convert(*paths, tmp_path / "out", **arguments)
    with pytest.raises(ShardNotFoundError, match="the folder has no files"):
        convert([tmp_path / "empty"], tmp_path / "out")
    (tmp_path / "none.csv").touch()
    with pytest.raises(ConfigurationError, match=r"none\.csv': expected a file with at least one row"):
        convert([tmp_path / "none.csv"], tmp_path / "out")
    os.mkfifo(tmp_path / "empty" / "pipe")
    with pytest.raises(ConfigurationError, match="pipe': expected regular files"):
        convert([tmp_path / "empty"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def tar(rows, **more):
    members = []
    for row in rows:
        own = {"cls": b"%d" % row["id"], "txt": row["text"].encode(), "json": json.dumps(row).encode(), **more}
        members += [(f"{row['id']:03}.{name}", content) for name, content in own.items()]
    return archive(members)


def test_tar_files_of_a_pattern_become_a_dataset(tmp_path):
    array, image = io.BytesIO(), io.BytesIO()
    np.save(array, np.arange(3))
    Image.new("RGB", (4, 3)).save(image, "JPEG")
    more = {"npy": array.getvalue(), "jpg": image.getvalue(), "pth": b"never unpickled", "flac": b"raw"}
    (tmp_path / "s").mkdir()
    for number in (10, 9):
        (tmp_path / "s" / f"{number}.tar").write_bytes(
            tar([row for row in ROWS if row["id"] % 2 == number % 2], **more)
        )
    for name, place in {"pattern": tmp_path / "s" / "*.tar", "folder": tmp_path / "s"}.items():
        out = tmp_path / name
        assert convert([place], out, size_limit=5000) == len(ROWS)
        rows = LocalDataset(out)
        assert [row["cls"] for row in rows] == [*range(1, 25, 2), *range(0, 25, 2)]
        assert rows[0]["__key__"] == "001"
        assert rows[0]["json"] == ROWS[1]
        assert rows[0]["txt"] == "été 1"
        assert rows[0]["jpg"].size == (4, 3)
        assert rows[0]["npy"].tolist() == [0, 1, 2]
        assert (rows[0]["pth"], rows[0]["flac"]) == (b"never unpickled", b"raw")
    assert convert([tmp_path / "s"], tmp_path / "raw", columns={"jpg": "bytes"}, only=["jpg", "cls"]) == len(ROWS)
    assert read(tmp_path / "raw")[3] == {"cls": 7, "jpg": image.getvalue()}


def test_tar_files_that_lack_a_member_or_a_value_name_it(tmp_path):
    (tmp_path / "a.tar").write_bytes(tar(ROWS[:2])[: 2 * 512 * 6] + tar([{"id": 2, "text": "t"}], txt=b"t", x=b"1"))
    with pytest.raises(SampleError, match="column 'x'"):
        convert([tmp_path / "a.tar"], tmp_path / "out")
    (tmp_path / "b.tar").write_bytes(tar(ROWS[:2], cls=b"one"))
    with pytest.raises(ShardCorruptError, match=r"b\.tar.*row 0, member '000\.cls'"):
        convert([tmp_path / "b.tar"], tmp_path / "out2")
    with pytest.raises(ShardNotFoundError, match="no file matches"):
        convert([tmp_path / "z*.tar"], tmp_path / "out3")
    (tmp_path / "c.tar.gz").write_bytes(gzip.compress(tar(ROWS[:2])))
    with pytest.raises(ConfigurationError, match="without compression"):
        convert([tmp_path / "c.tar.gz"], tmp_path / "out4")


def test_missing_members_become_null_where_that_is_allowed(tmp_path):
    rows = [{"id": 0, "text": "été"}, {"id": 1, "text": "t"}]
    first, second = tar(rows[:1]), tar(rows[1:], seg=b"")
    end = first.rstrip(b"\0")
    end = first[: -(-len(end) // 512) * 512]
    # The label of the second sample is missing.
    (tmp_path / "b.tar").write_bytes(end + second[1024:])
    with pytest.raises(SampleError, match="column 'cls'"):
        convert([tmp_path / "b.tar"], tmp_path / "out", only=["cls", "txt"])
    assert convert([tmp_path / "b.tar"], tmp_path / "out2", only=["cls", "txt"], nulls="json") == 2
    assert encodings(tmp_path / "out2") == {"cls": "json", "txt": "str"}
    assert read(tmp_path / "out2") == [{"cls": 0, "txt": "été"}, {"cls": None, "txt": "t"}]


@pytest.mark.parametrize(("suffix", "num_workers"), [("jsonl", 1), ("csv", 1), ("parquet", 1), ("jsonl", 2)])
def test_a_column_that_only_later_rows_have_is_an_error_and_not_lost(processes, suffix, num_workers, tmp_path):
    def write(name, row):
        path = tmp_path / f"{name}.{suffix}"
        if suffix == "parquet":
            pq.write_table(pa.table({column: [value] for column, value in row.items()}), path)
        elif suffix == "csv":
            path.write_text(f"{','.join(row)}\n{','.join(map(str, row.values()))}\n")
        else:
            path.write_text(json.dumps(row))
        return path

    paths = [write("a", {"x": 1}), write("b", {"x": 1, "z": 5})]
    with pytest.raises(SampleError, match="column 'z'") as raised:
        convert(paths, tmp_path / "refused", num_workers=num_workers)
    assert any("b." in note for note in raised.value.__notes__)
    seen = []
    assert convert(paths, tmp_path / "chosen", only=["x"], num_workers=num_workers, progress=seen.append) == 2
    assert num_workers == 1 or seen == [1, 2]
    assert convert(paths, tmp_path / "all", nulls="json") == 2
    assert sorted(LocalDataset(str(tmp_path / "all"))[1]) == ["x", "z"]
