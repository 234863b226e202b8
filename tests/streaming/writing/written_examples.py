"""What processes that write have to import, and what was written."""

from fkat_data.streaming.formats import read_index

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


def index_at(files, path, folder):
    """What the index in a store says, which is copied into a folder of its own."""
    copy = folder / "copied" / "index.json"
    copy.parent.mkdir(exist_ok=True)
    copy.write_bytes(files.cat_file(path))
    return read_index(copy)
