"""A store that says which bytes of its files were asked for."""

import io

import fsspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from counting_files import CountingFileSystem
from remote_tables import ROWS_OF_A_GROUP


@pytest.fixture
def store():
    """A store of this test alone: what was read ahead for another one may still ask for its files."""
    own = type("OwnFileSystem", (CountingFileSystem,), {"files": {}, "requests": []})
    fsspec.register_implementation("counting", own, clobber=True)
    return own


@pytest.fixture
def table(store):
    """Parquet of 60 columns and ten row groups, and the bytes of each column chunk."""
    content = io.BytesIO()
    numbers = {f"c{column:02}": np.random.default_rng(column).random(10 * ROWS_OF_A_GROUP) for column in range(60)}
    pq.write_table(pa.table(numbers), content, row_group_size=ROWS_OF_A_GROUP, use_dictionary=False)
    store.files["file"] = content.getvalue()
    return numbers, pq.read_metadata(content).row_group(3).column(7).total_compressed_size
