"""The table of when files were last used, which the threads of a process share."""

import os

from fkat_data.streaming.cache.access_times import AccessTimes


def test_a_use_goes_into_its_table_though_another_thread_replaces_the_table_meanwhile(tmp_path, monkeypatch):
    times = AccessTimes(tmp_path / "table")
    times.touch("a")
    read, meanwhile = os.pread, []

    def read_and_replace(descriptor, size, offset):
        content = read(descriptor, size, offset)
        if not meanwhile:
            meanwhile.append(None)
            (tmp_path / "table").unlink()
            times.touch("b")
            # It would get the number of a descriptor that had been closed too early.
            meanwhile.append((tmp_path / "of another").open("wb"))
        return content

    monkeypatch.setattr(os, "pread", read_and_replace)
    times.touch("c")
    meanwhile[1].close()
    assert (tmp_path / "of another").stat().st_size == 0
    assert times.last_use("b") > 0
