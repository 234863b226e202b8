"""Our own clients of stores, and the one of the documentation's example, keep the contract."""

import sqlite3
from pathlib import Path
from urllib.parse import quote

import pytest

from fkat_data import DownloadError
from fkat_data.extensions import ListedFile, register_store
from fkat_data.runtime import registry
from fkat_data.testing.contracts import StoreContract

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "store" / "sqlite_store.py"


def write_files(files, folder):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


class TestDirectory(StoreContract):
    def put(self, files, folder):
        write_files(files, folder)
        return f"file://{quote(str(folder))}"


class TestAnyFileSystemOfFsspec(StoreContract):
    def put(self, files, folder):
        import fsspec

        memory = fsspec.filesystem("memory")
        for name, content in files.items():
            memory.pipe_file(f"/{folder.name}/{name}", content)
        return f"memory://{folder.name}"

    @pytest.fixture(autouse=True)
    def _forget(self):
        yield
        from fsspec.implementations.memory import MemoryFileSystem

        MemoryFileSystem.store.clear()


def test_the_page_shows_the_example():
    code = EXAMPLE.read_text().split('"""\n\n', 1)[1]
    assert f"```python\n{code}```\n" in (EXAMPLE.parents[2] / "howto" / "extend.md").read_text()
    assert sum(bool(line.strip()) for line in code.splitlines()) <= 40


class TestExample(StoreContract):
    @pytest.fixture(autouse=True)
    def _registered(self, monkeypatch):
        monkeypatch.syspath_prepend(EXAMPLE.parent)
        import sqlite_store

        register_store("sqlite", sqlite_store.SqliteClient)
        yield
        registry._entries["store"].pop("sqlite")

    def put(self, files, folder):
        with sqlite3.connect(folder / "data.db") as database:
            database.execute("CREATE TABLE IF NOT EXISTS files(name TEXT PRIMARY KEY, content BLOB)")
            database.executemany("INSERT OR REPLACE INTO files VALUES (?, ?)", files.items())
        database.close()
        return f"sqlite://{folder}/data.db"


class TestBucket(StoreContract):
    storage_options = {}  # noqa: RUF012 - filled by the server

    @pytest.fixture(autouse=True)
    def _server(self, processes, moto_server):
        self.server = moto_server
        self.storage_options = moto_server.options()

    def put(self, files, folder):
        import servers

        for name, content in files.items():
            self.server.put(f"{folder.name}/{name}", content)
        return f"s3://{servers.BUCKET}/{folder.name}"


class TestWeb(StoreContract):
    can_list = False

    @pytest.fixture(autouse=True)
    def _server(self, processes, tmp_path):
        from proxy import FaultServer

        self.root = tmp_path
        with FaultServer(tmp_path) as self.server:
            yield

    def put(self, files, folder):
        write_files(files, folder)
        return f"{self.server.url}/{folder.relative_to(self.root)}".removesuffix("/.")


class Careless:
    """A client with faults by name."""

    files = {}  # noqa: RUF012 - of the test that runs

    def __init__(self, url, options):
        self.fault = url.removeprefix("careless://")

    def open(self, name, start, version, timeout_s, stop=None):
        content = self.files.get(name)
        if content is None:
            if self.fault == "empty":
                content = b""
            else:
                raise FileNotFoundError(name)
        first = start if stop is not None or (version and self.fault != "from 0") else 0
        body = type("Body", (), {"close": lambda _: None})()
        body.start, body.size_bytes, body.version = first, len(content), self.version(name, timeout_s)
        rest = [content[first + (self.fault == "shifted" and first > 0) : stop], b""]
        body.read = lambda timeout_s: rest.pop(0)
        return body

    def version(self, name, timeout_s, *, is_timed=False):
        if name not in self.files and self.fault != "empty":
            raise FileNotFoundError(name)
        return "1" if self.fault == "one version" else str(hash(self.files.get(name)))

    def listing(self, prefix, timeout_s):
        names = [name for name in self.files if name.startswith(prefix) and not (self.fault == "flat" and "/" in name)]
        return [ListedFile(name, len(self.files[name]), "") for name in names]

    def close(self):
        pass


class CarelessContract(StoreContract):
    def __init__(self, fault):
        self.fault = fault
        Careless.files = {}

    def put(self, files, folder):
        Careless.files |= files
        return f"careless://{self.fault}"


@pytest.mark.parametrize(
    ("fault", "test"),
    [
        ("shifted", "test_any_range_arrives"),
        ("shifted", "test_a_transfer_goes_on_where_it_stopped_or_begins_again"),
        ("one version", "test_a_version_names_a_content"),
        ("empty", "test_a_file_that_does_not_exist_is_missing"),
        ("flat", "test_the_listing_has_each_file_with_its_size"),
    ],
)
def test_a_wrong_client_is_found_out(fault, test, tmp_path, monkeypatch):
    monkeypatch.setitem(registry._entries["store"], "careless", Careless)
    with pytest.raises((AssertionError, DownloadError)):
        getattr(CarelessContract(fault), test)(tmp_path)
