"""What processes that write have to import, and what was written."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

from fkat_data.streaming import MDSWriter, write_parallel
from fkat_data.streaming.formats import open_shard, read_index

COLUMNS = {"id": "int", "text": "str"}


def samples_of(item):
    start, count = item
    for number in range(start, start + count):
        if number == 13:
            raise ValueError("thirteen")
        yield {"id": number, "text": "x" * (number % 7)}


def good_samples_of(item):
    start, count = item
    return [{"id": number, "text": "x" * (number % 7)} for number in range(start, start + count)]


def write(out, samples, writer=MDSWriter, size_limit=300, **options):
    """Write samples of the columns here."""
    with writer(columns=COLUMNS, out=out, size_limit=size_limit, **options) as made:
        for sample in samples:
            made.write(sample)


def write_items(out, items, samples_of=good_samples_of, **options):
    """Write the samples of items in parallel; return their number."""
    with ThreadPoolExecutor(2) as executor:
        make_writer = partial(MDSWriter, columns=COLUMNS)
        return write_parallel(make_writer, samples_of, items, out=out, executor=executor, **options)


def rows_in(directory):
    """The samples that are in a directory."""
    entries = read_index(directory / "index.json")
    shards = [open_shard(directory, entry, allow_unsafe_types=True) for entry in entries]
    return [row for shard in shards for row in shard.samples(range(shard.num_samples))]


def tens(count):
    """So many items of ten samples."""
    return [(10 * number, 10) for number in range(count)]


def index_at(files, path, folder):
    """What the index in a store says, which is copied into a folder of its own."""
    copy = folder / "copied" / "index.json"
    copy.parent.mkdir(exist_ok=True)
    copy.write_bytes(files.cat_file(path))
    return read_index(copy)
