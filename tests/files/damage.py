"""Real datasets, damaged where it hurts: a mutation knows what the bytes that it changes are for."""

import copy
import json
import shutil
import struct

from golden_shards import SHARDS

#: Pickles run code when they are damaged as when they are not: they are tested by being refused.
CASES = sorted(
    path.parent.parent.name
    for path in SHARDS.glob("*/data/index.json")
    if path.parent.parent.name not in ("mds-pkl", "mds-no-samples")
)
HASHED = [
    case for case in CASES if json.loads((SHARDS / case / "data" / "index.json").read_text())["shards"][0]["hashes"]
]

NUMBERS = [0, 1, 2, 3, 4, 7, 8, 9, 255, 256, 65535, 1 << 31, (1 << 31) - 1, (1 << 32) - 1]
VALUES = [
    *(None, True, -1, 0, 1, 2, 8, 1 << 20, (1 << 32) - 1, 1 << 62, 10**30, 0.5, "", "x", "../x", "/x", "a\0b", [], {}),
    *("mds", "json", "xsv", "csv", "tsv", "zstd", "gz", "br:3", "bz2", "snappy", "md5", "\n", ",", [0], {"a": 1}),
    *(
        "int",
        "str",
        "bytes",
        "float",
        "float64",
        "ndarray",
        "ndarray:uint8",
        "ndarray:int16:2,2",
        "pil",
        "jpeg",
        "json",
    ),
    *("list[pil]", "jpeg_array", "str_int", "str_decimal", "pkl"),
]


def damaged(case, draw, directory):
    """Copy a dataset and damage it; returns what was done.

    Args:
        case: Name of the golden dataset.
        draw: A random.Random.
        directory: Where the copy goes.
    """
    shutil.copytree(SHARDS / case / "data", directory, dirs_exist_ok=True)
    done = [draw.choice(MUTATIONS)(draw, directory) for _ in range(draw.choice((1, 1, 1, 2, 3)))]
    if draw.random() < 0.5:
        done.append(made_to_fit(directory))
    return done


def in_fresh_folders(check, numbers, tmp_path):
    """Check each case in a folder of its own."""
    for number in numbers:
        root = tmp_path / "case"
        root.mkdir()
        check(number, root)
        shutil.rmtree(root)


def made_to_fit(directory):
    """Make the index tell the sizes that the files now have, so that what lies deeper is reached."""
    path = directory / "index.json"
    try:
        index = json.loads(path.read_bytes())
        for shard in index["shards"]:
            for key in ("raw_data", "zip_data", "raw_meta", "zip_meta"):
                if shard.get(key):
                    shard[key]["bytes"] = (directory / shard[key]["basename"]).stat().st_size
    except (ValueError, KeyError, TypeError, AttributeError, OSError):
        return "sizes could not be made to fit"
    path.write_text(json.dumps(index))
    return "sizes made to fit"


def data_file(draw, directory):
    return draw.choice(sorted(path for path in directory.rglob("*") if path.is_file() and path.name != "index.json"))


def change_a_field(draw, directory):
    path = directory / "index.json"
    try:
        index = json.loads(path.read_bytes())
    except ValueError:
        return "nothing: the index was damaged before"
    places = list(positions_in(index))
    if not places:
        return "nothing: the index is empty"
    container, key, name = draw.choice(places)
    how = draw.choice(("replace", "replace", "replace", "nudge", "remove", "swap"))
    if how == "remove":
        del container[key]
    elif how == "swap":
        other, other_key, _ = draw.choice(places)
        container[key] = copy.deepcopy(other[other_key])
    elif how == "nudge" and isinstance(container[key], int):
        container[key] += draw.choice((-1, 1, 4, -4, 1 << 32))
    else:
        container[key] = draw.choice(VALUES)
    path.write_text(json.dumps(index))
    return f"{how} {name}"


def positions_in(value, name=""):
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(items):
        yield value, key, f"{name}.{key}"
        yield from positions_in(inner, f"{name}.{key}")


def change_a_number(draw, directory):
    """Change one of the 32-bit numbers at a file's start: the count, or an offset."""
    path = data_file(draw, directory)
    content = bytearray(path.read_bytes())
    place = 4 * draw.randrange(min(len(content) // 4, 16)) if len(content) >= 4 else 0
    old = int.from_bytes(content[place : place + 4], "little")
    new = draw.choice([*NUMBERS, old + 1, old - 1, old + 4, len(content), draw.randrange(1 << 32)]) % (1 << 32)
    content[place : place + 4] = struct.pack("<I", new)
    path.write_bytes(content)
    return f"{path.name} at {place}: {old} becomes {new}"


def change_a_word_in_a_row(draw, directory):
    path = data_file(draw, directory)
    content = bytearray(path.read_bytes())
    if len(content) < 8:
        return "nothing"
    place = draw.randrange(len(content) - 4)
    width = draw.choice((1, 2, 4))
    content[place : place + width] = struct.pack("<I", draw.choice([*NUMBERS, draw.randrange(1 << 32)]))[:width]
    path.write_bytes(content)
    return f"{path.name} at {place}: {width} bytes"


def flip_bits(draw, directory):
    path = data_file(draw, directory)
    content = bytearray(path.read_bytes())
    places = [draw.randrange(len(content)) for _ in range(draw.choice((1, 1, 2, 8)))] if content else []
    for place in places:
        content[place] ^= 1 << draw.randrange(8)
    path.write_bytes(content)
    return f"{path.name}: bits at {places}"


def cut_or_grow(draw, directory):
    path = data_file(draw, directory)
    content = path.read_bytes()
    size = draw.choice((0, 1, 4, len(content) // 2, len(content) - 1, len(content) + 1, len(content) + 100))
    path.write_bytes((content + bytes(200))[: max(0, size)])
    return f"{path.name}: {len(content)} bytes become {size}"


def exchange_files(draw, directory):
    first, second = data_file(draw, directory), data_file(draw, directory)
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)
    return f"{first.name} and {second.name} exchanged"


def remove_or_replace_a_file(draw, directory):
    path = data_file(draw, directory)
    path.unlink()
    if draw.random() < 0.5:
        path.mkdir()
    return f"{path.name} is gone"


def damage_the_text_of_the_index(draw, directory):
    path = directory / "index.json"
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] = draw.choice(b'"{}[],:0159tn\\ \x00\xff')
    path.write_bytes(content)
    return "a character of the index"


MUTATIONS = [
    *(change_a_field, change_a_field, change_a_field, change_a_number, change_a_number, change_a_word_in_a_row),
    *(change_a_word_in_a_row, flip_bits, cut_or_grow, exchange_files, damage_the_text_of_the_index),
]
#: Those that leave the index alone.
OF_DATA = [change_a_number, change_a_word_in_a_row, flip_bits, cut_or_grow, exchange_files, remove_or_replace_a_file]
