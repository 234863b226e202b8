"""A store of your own: the files of a dataset in a table ``files(name, content)`` of an SQLite database."""

import hashlib
import sqlite3
from contextlib import closing

from fkat_data.extensions import ListedFile, register_store


class SqliteClient:
    def __init__(self, url, options):
        self._path = url.removeprefix("sqlite://")

    def open(self, name, start, version, timeout_s, stop=None):
        return Row(self._content(name, timeout_s), start, version, stop)

    def version(self, name, timeout_s, *, is_timed=False):
        return version_of(self._content(name, timeout_s))

    def listing(self, prefix, timeout_s):
        query = "SELECT name, content FROM files WHERE substr(name, 1, ?) = ?"
        rows = self._rows(query, timeout_s, len(prefix), prefix)
        return [ListedFile(name, len(row), version_of(row)) for name, row in rows]

    def close(self):
        pass  # each request has its own connection, so threads can share a client

    def _content(self, name, timeout_s):
        query = "SELECT content FROM files WHERE name = ?"
        for (content,) in self._rows(query, timeout_s, name):
            return content
        raise FileNotFoundError(name)

    def _rows(self, query, timeout_s, *values):
        uri = f"file:{self._path}?mode=ro"
        with closing(sqlite3.connect(uri, timeout_s, uri=True)) as connection:
            return connection.execute(query, values).fetchall()


class Row:
    def __init__(self, content, start, version, stop):
        self.version, self.size_bytes = version_of(content), len(content)
        # A file that was replaced meanwhile is sent from its first byte.
        self.start = start if stop is not None or version == self.version else 0
        self._rest = content[self.start : stop]

    def read(self, timeout_s):
        rest, self._rest = self._rest, b""
        return rest

    def close(self):
        pass


def version_of(content):
    return hashlib.sha256(content).hexdigest()


register_store("sqlite", SqliteClient)
