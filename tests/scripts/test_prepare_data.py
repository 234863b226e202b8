import prepare_data
import pyarrow.parquet as pq
import pytest


@pytest.fixture
def source(tmp_path):
    """Three source files, and some that are none."""
    folder = tmp_path / "source"
    for name, content in {
        "b.py": b"beta\n" * 20,
        "a.py": b"alpha\n" * 20,
        "package/c.py": "gamma \N{GREEK SMALL LETTER GAMMA}\n".encode() * 20,
        "site-packages/other.py": b"not ours\n" * 99,
        "__pycache__/cached.py": b"not ours\n" * 99,
        "notes.txt": b"not Python\n" * 99,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


TEXT = b"alpha\n" * 20 + b"\0" + b"beta\n" * 20 + b"\0" + "gamma \N{GREEK SMALL LETTER GAMMA}\n".encode() * 20


def rows_of(folder, shard):
    return [bytes(row) for row in pq.read_table(folder / f"shard-{shard:05d}.parquet")["tokens"].to_pylist()]


def contents(folder):
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


def test_the_rows_of_all_shards_are_the_text_dealt_out_in_turn(source, tmp_path):
    prepare_data.prepare(tmp_path / "data", source, sequence_length=9, num_shards=3, row_group_rows=4)
    shards = [rows_of(tmp_path / "data", shard) for shard in range(3)]
    dealt = [row for turn in zip(*shards, strict=True) for row in turn]
    num_rows = len(TEXT) // 10 // 3 * 3
    assert dealt == [TEXT[start : start + 10] for start in range(0, 10 * num_rows, 10)]


def test_a_second_preparation_leaves_everything_as_it_is(source, tmp_path):
    first = prepare_data.prepare(tmp_path / "data", source, sequence_length=9, num_shards=2)
    before = contents(tmp_path / "data")
    assert prepare_data.prepare(tmp_path / "data", source, sequence_length=9, num_shards=2) == first
    assert contents(tmp_path / "data") == before


@pytest.mark.parametrize(
    "change", ["settings", "source", "a shard is gone", "a shard is cut off", "the manifest is odd"]
)
def test_the_shards_are_made_anew_where_something_has_changed(source, tmp_path, change):
    data = tmp_path / "data"
    prepare_data.prepare(data, source, sequence_length=9, num_shards=3)
    sequence_length, num_shards = 9, 3
    if change == "settings":
        sequence_length, num_shards = 4, 2
    elif change == "source":
        (source / "a.py").write_bytes(b"ALPHA\n" * 20)
    elif change == "a shard is gone":
        (data / "shard-00001.parquet").unlink()
    elif change == "a shard is cut off":
        (data / "shard-00001.parquet").write_bytes(b"PAR1")
    else:
        (data / "manifest.json").write_text('{"shards": 3')
    prepare_data.prepare(data, source, sequence_length=sequence_length, num_shards=num_shards)
    # As if it had been made from nothing: no shard of the earlier layout is left either.
    prepare_data.prepare(tmp_path / "anew", source, sequence_length=sequence_length, num_shards=num_shards)
    assert {name: content for name, (_, content) in contents(data).items()} == {
        name: content for name, (_, content) in contents(tmp_path / "anew").items()
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sequence_length": 0}, "sequence_length = 0: expected at least 1"),
        ({"sequence_length": 200, "num_shards": 50}, "too few for 50 shards"),
        ({"source": "nowhere"}, "no .*py files under"),
    ],
)
def test_what_cannot_work_is_said_in_one_line(source, tmp_path, settings, message):
    source = tmp_path / settings.pop("source", "source")
    with pytest.raises(SystemExit, match=message):
        prepare_data.prepare(tmp_path / "data", source, **settings)
