"""Where what the user's programs know is kept."""

import os.path

from fkat_data.storage.location import user_cache_file


def test_what_is_known_is_kept_below_the_users_directory_of_caches(monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/caches")
    first, second = (user_cache_file("counts", location) for location in ("s3://a", "s3://b"))
    assert first.is_relative_to("/caches/fkat_data/counts")
    assert first != second


def test_without_a_home_nothing_is_kept(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os.path, "expanduser", lambda path: path)  # as for a user whom the machine does not know
    assert not user_cache_file("counts", "s3://a").parents[2].exists()
