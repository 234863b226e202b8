"""A store of fsspec that says which bytes of its files were asked for."""

import threading
from typing import ClassVar

from fsspec import AbstractFileSystem
from fsspec.spec import AbstractBufferedFile


class CountingFile(AbstractBufferedFile):
    """A file that reads ahead as fsspec does, unless it is asked for ranges."""

    def _fetch_range(self, start, end):
        with self.fs.lock:
            self.fs.requests.append((self.path, start, end))
        if self.fs.meeting is not None:
            self.fs.meeting.wait()
        return self.fs.answer(self.fs.files[self.path][start:end])


class CountingFileSystem(AbstractFileSystem):
    """Files in memory.

    Attributes:
        files: The contents, by name.
        requests: Which ranges were asked for: the file, and the first and the last byte.
        meeting: The ``Meeting`` that requests wait at; None: they do not wait.
        answer: What becomes of the bytes of an answer.
    """

    protocol = "counting"
    async_impl = True  # several requests at a time
    files: ClassVar[dict[str, bytes]] = {}
    requests: ClassVar[list[tuple[str, int, int]]] = []
    lock = threading.Lock()
    meeting = None
    answer = staticmethod(bytes)

    def info(self, path, **options):
        path = self._strip_protocol(path)
        if path not in self.files:
            raise FileNotFoundError(path)
        return {"name": path, "size": len(self.files[path]), "type": "file", "ETag": str(hash(self.files[path]))}

    def _open(self, path, mode="rb", **options):
        return CountingFile(self, path, mode, **options)

    @classmethod
    def num_bytes(cls):
        return sum(end - start for _, start, end in cls.requests)
