import io
import random
import time

import pytest
from hub_server import SIGNATURE
from patience import unless_held_up
from stored_files import info_of

from fkat_data.errors import ConfigurationError, DownloadError, ShardNotFoundError
from fkat_data.streaming.store import Origin, open_store

pytest.importorskip("huggingface_hub")

TOKEN = "hf_aSecretToken"
LARGE = random.Random(0).randbytes(300_000)
FILES = {
    "README.md": b"# A dataset",
    "data/index.json": b'{"version": 2}',
    "data/a.mds": LARGE,
    "data/sub/b.mds": LARGE[:1000],
    "data/with space #1.mds": LARGE[:2000],
}
URL = "hf://datasets/owner/name/data"


@pytest.fixture
def hub(hub):
    hub.push(FILES)
    return hub


@pytest.fixture
def opened(hub):
    stores = []

    def open_it(url=URL, **options):
        stores.append(open_store(url, storage_options=options, num_retries=2, timeout_s=10))
        return stores[-1]

    yield open_it
    for store in stores:
        store.close()


def downloaded(store, name, content):
    target = io.BytesIO()
    store.download(name, target, info_of(name, content), "sha256")
    return target.getvalue()


@pytest.mark.parametrize(
    "url", ["hf://", "hf://datasets/n", "hf://datasets/o/n/../x", "hf://datasets/o/n//x", "hf://n"]
)
def test_a_url_that_names_none_is_refused(url):
    with pytest.raises(ConfigurationError, match="remote"):
        open_store(url, storage_options=None, num_retries=0, timeout_s=1)


def test_options_that_the_hub_does_not_know_are_refused():
    with pytest.raises(ConfigurationError, match="'key'") as caught:
        open_store(URL, storage_options={"key": "not to be shown"}, num_retries=0, timeout_s=1)
    assert "not to be shown" not in str(caught.value)
    with pytest.raises(ConfigurationError, match="revision"):
        open_store(f"{URL.replace('name', 'name@a')}", storage_options={"revision": "b"}, num_retries=0, timeout_s=1)


@pytest.mark.parametrize("page_size", [1, 1000])
def test_files_are_listed_and_read_whole_and_by_ranges(hub, opened, page_size):
    hub.page_size = page_size
    store = opened()
    listed = {file.name: file for file in store.listing()}
    assert {name: file.size_bytes for name, file in listed.items()} == {
        name.removeprefix("data/"): len(content) for name, content in FILES.items() if name.startswith("data/")
    }
    assert [file.name for file in store.listing("sub/")] == ["sub/b.mds"]
    assert store.listing("none/") == []
    for name, file in listed.items():
        content = FILES[f"data/{name}"]
        assert downloaded(store, name, content) == content
        assert store.version(name) == file.version
        assert store.read_range(name, 3, 9, size_bytes=len(content), version="")[0] == content[3:9]
    assert store.version("index.json", is_timed=True).startswith(store.read("index.json", 100)[1])


def test_a_token_goes_to_the_hub_alone_and_into_no_message(hub, opened, monkeypatch):
    hub.token = TOKEN
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    store = opened()
    assert downloaded(store, "a.mds", LARGE) == LARGE
    assert {asked[2] for asked in hub.asked("/cdn/")} == {None}
    assert {asked[2] for asked in hub.asked("/datasets/")} == {f"Bearer {TOKEN}"}
    hub.cdn_lives = False
    with pytest.raises(DownloadError) as caught:
        downloaded(store, "sub/b.mds", LARGE[:1000])
    for text in (str(caught.value), repr(store)):
        assert TOKEN not in text
        assert SIGNATURE not in text
    assert caught.value.num_attempts == 3


@pytest.mark.parametrize(
    ("token", "words"), [(None, "set HF_TOKEN, or run `hf auth login`"), ("hf_wrong", "accept the conditions")]
)
def test_what_may_not_be_read_is_an_error_at_once_that_names_the_page(hub, opened, token, words):
    hub.token = TOKEN
    store = opened(token=token)
    with pytest.raises(DownloadError, match=words) as caught:
        store.listing()
    assert "401" in str(caught.value)
    assert f"{hub.url}/datasets/owner/name" in str(caught.value)
    assert caught.value.num_attempts == len(hub.requests) == 1


@pytest.mark.parametrize(
    ("url", "words"),
    {
        URL: "Entry not found",
        URL.replace("owner", "stranger"): "Repository not found",
        URL.replace("name", "name@v9"): "Invalid rev id",
    }.items(),
)
def test_what_is_missing_is_found_missing(opened, url, words):
    with pytest.raises(ShardNotFoundError, match=words):
        opened(url).version("no.mds")


@pytest.mark.parametrize(
    ("route", "headers"), [("/revision/", {"RateLimit": '"api";r=0;t=1'}), ("/cdn/", {"Retry-After": "1"})]
)
@unless_held_up
def test_a_hub_that_asks_for_time_gets_it(hub, opened, route, headers):
    hub.faults = [(route, 429, headers)]
    store = opened()
    began_s = time.monotonic()
    assert len(store.listing()) == 4
    assert downloaded(store, "a.mds", LARGE) == LARGE
    assert 1.0 <= time.monotonic() - began_s < 5


def test_faults_of_the_hub_and_of_its_cdn_pass(hub, opened):
    hub.faults = [("/revision/", 503, {}), ("/tree/", 429, {}), ("/resolve/", 502, {}), ("/cdn/", 403, {})]
    store = opened()
    assert len(store.listing()) == 4
    assert downloaded(store, "a.mds", LARGE) == LARGE
    assert not hub.faults


def test_the_version_of_a_directory_is_that_of_its_data(hub, opened):
    hub.push({path.removeprefix("data/"): content for path, content in FILES.items() if path != "README.md"})
    timed = [opened("hf://datasets/owner/name").version("index.json", is_timed=True)]
    for change in ({"README.md": b"other words"}, {"sub/b.mds": LARGE[::-1][:1000]}):
        hub.push(hub.repositories["owner/name"][hub.branches["owner/name", "main"]] | change)
        timed.append(opened("hf://datasets/owner/name").version("index.json", is_timed=True))
    assert timed[0] == timed[1] != timed[2]


def test_a_range_comes_from_the_commit_of_its_version(hub, opened):
    first = opened()
    _, version = first.read_range("a.mds", 0, 10, size_bytes=len(LARGE), version="")
    origin = Origin("a.mds", len(LARGE), version, ((5, 9), (20, 30)))
    hub.push(FILES | {"data/a.mds": LARGE[::-1]})
    target = io.BytesIO()
    opened().download_part(origin, target)
    assert target.getvalue() == LARGE[5:9] + LARGE[20:30]

    # History is rewritten: the commit is gone. Other content is refused, and the same content is taken.
    commit = version.partition("@")[2]
    del hub.repositories["owner/name"][commit]
    with pytest.raises(DownloadError, match="replaced"):
        opened().download_part(origin, io.BytesIO())
    hub.push(FILES)
    target = io.BytesIO()
    opened().download_part(origin, target)
    assert target.getvalue() == LARGE[5:9] + LARGE[20:30]


def test_a_commit_is_taken_at_its_word(hub, opened):
    commit = hub.branches["owner/name", "main"]
    hub.push({"data/index.json": b"{}"})
    assert len(opened(URL.replace("name", f"name@{commit}")).listing()) == 4
    assert len(opened(revision=commit).listing()) == 4
    assert not hub.asked("/revision/")
