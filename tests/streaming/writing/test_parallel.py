"""Writing by processes and threads: one dataset in the items' order, or none."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import accumulate

import pytest
from written_examples import COLUMNS, good_samples_of, rows_in, samples_of, write_items

from fkat_data.errors import ConfigurationError
from fkat_data.streaming import JSONWriter, MDSWriter, write_parallel

ITEMS = [(100 * number, number % 4) for number in range(12)]


@pytest.mark.parametrize("writer", [MDSWriter, JSONWriter])
def test_the_samples_come_in_the_order_of_the_items(tmp_path, writer):
    make_writer = partial(writer, columns=COLUMNS, size_limit=200)
    seen = []
    with ThreadPoolExecutor(3) as executor:
        count = write_parallel(
            make_writer, good_samples_of, ITEMS, out=tmp_path, executor=executor, progress=seen.append
        )
    expected = [sample for item in ITEMS for sample in good_samples_of(item)]
    assert count == len(expected)
    assert seen == list(accumulate(len(good_samples_of(item)) for item in ITEMS))
    assert rows_in(tmp_path) == expected


def test_processes_write_one_dataset(prepared, run_script, tmp_path):
    done = run_script(
        f"""
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from written_examples import COLUMNS, good_samples_of
from fkat_data.streaming import MDSWriter, write_parallel
if __name__ == "__main__":
    with ProcessPoolExecutor(2) as executor:
        make = partial(MDSWriter, columns=COLUMNS)
        print(write_parallel(make, good_samples_of, {ITEMS}, out={str(tmp_path / "data")!r}, executor=executor))
""",
        by="fork",
    )
    expected = [sample for item in ITEMS for sample in good_samples_of(item)]
    assert done.stdout.split() == [str(len(expected))]
    assert rows_in(tmp_path / "data") == expected


def test_an_item_that_fails_is_named_and_there_is_no_whole_nor_what_was_to_be_replaced(tmp_path):
    write_items(tmp_path, [(0, 5), (100, 5)])
    with pytest.raises(FileExistsError, match="exist_ok=True"):
        write_items(tmp_path, [(0, 3)])
    assert len(rows_in(tmp_path)) == 10
    with pytest.raises(ValueError, match="thirteen") as caught:
        write_items(tmp_path, [(0, 5), (10, 9), (20, 5)], samples_of, exist_ok=True)
    assert caught.value.__notes__ == ["while writing item 1 (from 0), (10, 9)"]
    assert not (tmp_path / "index.json").exists()
    assert not (tmp_path / "000001" / "index.json").exists()


def test_nothing_to_do_is_refused(tmp_path):
    with pytest.raises(ConfigurationError, match=r"items = \[\]"):
        write_items(tmp_path, [])
