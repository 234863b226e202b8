import re
import tempfile
import zipfile
from pathlib import Path

import fsspec
import pytest
from archive_examples import archive
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from omegaconf import OmegaConf

from fkat_data.errors import ConfigurationError, DownloadError
from fkat_data.samplers import FsShardSampler
from fkat_data.streaming import LocalDataset
from fkat_data.streaming.store import open_store
from fkat_data.tools import convert

TREE = ["b.bin", "a.bin", "notes.txt", "deep/c.bin", "deep/er/d.bin"]
HIDDEN = ["_SUCCESS", ".a.bin.crc", "_temporary/e.bin", "deep/.git/f.bin", "_delta_log/0.json", "_delta_log/.0.json"]


def fill(root, names):
    for name in names:
        path = Path(root, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)


@pytest.fixture
def tree(tmp_path):
    fill(tmp_path / "data", TREE + HIDDEN)
    return tmp_path / "data"


@pytest.fixture
def memory():
    file_system = fsspec.filesystem("memory")
    for name in TREE + HIDDEN:
        file_system.pipe(f"/tree/{name}", b"x")
    yield file_system
    file_system.store.clear()


def below(root, names):
    return sorted(f"{root}/{name}" for name in names)


def content(shard):
    with fsspec.open(shard) as file:
        return file.read().decode()


@pytest.mark.parametrize("uri", ["{tree}", "file://{tree}", "memory://tree", "memory:///tree", "memory://tree/"])
def test_the_files_under_a_path_or_a_uri_come_in_order_and_open_as_they_were_named(tree, memory, uri):
    uri = uri.format(tree=tree)
    shards = list(FsShardSampler(uri))
    assert shards == below(uri.rstrip("/"), TREE)
    assert [content(shard) for shard in shards] == (["x"] * len(TREE) if "memory" in uri else sorted(TREE))


@pytest.fixture(scope="module")
def bucket(shared_processes):
    import servers

    with servers.moto() as server:
        client = server.client()
        for name in TREE + HIDDEN:
            client.put_object(Bucket=servers.BUCKET, Key=f"tree/{name}", Body=b"x")
        client.put_object(Bucket=servers.BUCKET, Key="tree/deep/", Body=b"")  # as consoles make a folder
        client.put_object(Bucket=servers.BUCKET, Key="treehouse/a.bin", Body=b"x")
        options = {"key": server.key, "secret": server.secret, "endpoint_url": server.endpoint_url}
        yield f"s3://{servers.BUCKET}", options


def test_the_files_in_a_bucket_are_uris_that_open(bucket):
    root, options = bucket
    for uri in (f"{root}/tree", f"{root}/tree/"):
        sampler = FsShardSampler(uri, storage_options=options)
        assert list(sampler) == below(f"{root}/tree", TREE)
    assert list(FsShardSampler(f"{root}/tree", "*.bin", storage_options=options, recursive=False)) == below(
        f"{root}/tree", ["a.bin", "b.bin"]
    )
    with fsspec.open(next(iter(sampler)), **options) as file:
        assert file.read() == b"x"


@pytest.mark.parametrize("path", ["/nothing/here", "-other/tree"], ids=["no such key", "no such bucket"])
def test_what_is_not_in_a_bucket_is_refused_by_name(bucket, path):
    root, options = bucket
    with pytest.raises(ConfigurationError, match=f"uri = '{root}{path}'"):
        FsShardSampler(f"{root}{path}", storage_options=options)


def test_a_server_that_does_not_answer_is_named(bucket):
    root, options = bucket
    once = {"retries": {"max_attempts": 1}, "connect_timeout": 2}
    with pytest.raises(Exception, match=r"127\.0\.0\.1:9"):
        FsShardSampler(root, storage_options={**options, "config_kwargs": once, "endpoint_url": "http://127.0.0.1:9"})


def listed_by_a_sampler(root, below=""):
    return [Path(shard).name for shard in FsShardSampler(f"file://{root}/{below}")]


def listed_by_a_store(root, below=""):
    store = open_store(root, storage_options=None, num_retries=0, timeout_s=5)
    return [file.name for file in store.listing(below)]


@pytest.mark.parametrize("listed", [listed_by_a_sampler, listed_by_a_store])
def test_folders_that_may_not_be_read_are_refused_unless_they_hold_no_data(forbidden, caplog, listed):
    root, forbid = forbidden
    for folder in ("lost+found", ".snapshot"):
        forbid(folder)
        assert listed(root) == ["a.tar"]
        with pytest.raises(PermissionError, match=re.escape(folder)):
            listed(root, f"closed/{folder}/")
    assert [record.getMessage().partition(" is ")[0] for record in caplog.records] == [f"{root}/closed/.snapshot"]
    for folder in ("_more", "more"):
        forbid(folder)
        with pytest.raises(PermissionError, match=folder) as caught:
            listed(root)
        assert "let this user read the folder" in caught.value.__notes__[0]


def of_stream(pattern):
    return [int(sample["cls"]) for sample in LocalDataset(pattern, columns=["cls"])]


def of_conversion(pattern):
    with tempfile.TemporaryDirectory() as out:
        convert(pattern, out)
        return [sample["cls"] for sample in LocalDataset(out)]


@pytest.mark.parametrize("read", [of_stream, of_conversion])
def test_a_pattern_looks_into_no_folder_that_it_does_not_reach(forbidden, read):
    root, forbid = forbidden
    for number, name in enumerate(["a.tar", "open/deep/b.tar"]):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(archive([("0.cls", b"%d" % number)]))
    forbid("more")
    assert read(root / "*.tar") == [0]
    assert read(root / "o*" / "**" / "*.tar") == [1]
    with pytest.raises(PermissionError, match="closed/more"):
        read(root / "**" / "*.tar")


def test_a_relative_path_becomes_absolute(tree, monkeypatch):
    monkeypatch.chdir(tree.parent)
    for path in ("data", "./data", "data/", "other/../data", Path("data")):
        assert list(FsShardSampler(path)) == below(tree, TREE)


def test_a_uri_that_is_one_file_is_one_shard(tree, memory):
    assert list(FsShardSampler(tree / "a.bin")) == [f"{tree}/a.bin"]
    assert list(FsShardSampler(tree / "_SUCCESS")) == [f"{tree}/_SUCCESS"]  # it was named
    assert list(FsShardSampler(f"file://{tree}/a.bin", "*.bin")) == [f"file://{tree}/a.bin"]
    assert list(FsShardSampler("memory://tree/deep/c.bin", "c.*")) == ["memory://tree/deep/c.bin"]


@pytest.mark.parametrize("root", ["{tree}", "file://{tree}", "memory://tree"])
def test_without_recursion_only_the_files_of_the_directory_itself_come(tree, memory, root):
    root = root.format(tree=tree)
    assert list(FsShardSampler(root, recursive=False)) == below(root, ["a.bin", "b.bin", "notes.txt"])


@pytest.mark.parametrize(
    ("glob", "names"),
    [
        ("", TREE),
        ("*", TREE),
        # Without a slash, by the name.
        ("*.bin", ["a.bin", "b.bin", "deep/c.bin", "deep/er/d.bin"]),
        ("?.bin", ["a.bin", "b.bin", "deep/c.bin", "deep/er/d.bin"]),
        ("[!a].bin", ["b.bin", "deep/c.bin", "deep/er/d.bin"]),
        ("[^a].bin", ["b.bin", "deep/c.bin", "deep/er/d.bin"]),
        ("d*.bin", ["deep/er/d.bin"]),
        # Else by the path: * stands for no slash.
        ("deep/*", ["deep/c.bin"]),
        ("deep/**", ["deep/c.bin", "deep/er/d.bin"]),
        ("**/?.bin", ["a.bin", "b.bin", "deep/c.bin", "deep/er/d.bin"]),
        ("*/*/*.bin", ["deep/er/d.bin"]),
        # Hidden ones, by a part that starts as they do.
        ("_SUCCESS", ["_SUCCESS"]),
        ("_*", ["_SUCCESS"]),
        ("_delta_log/*.json", ["_delta_log/0.json"]),
        ("_delta_log/.*", ["_delta_log/.0.json"]),
        (".*.crc", [".a.bin.crc"]),
        ("*/.git/*", ["deep/.git/f.bin"]),
    ],
)
def test_a_glob_chooses_by_the_name_or_by_the_path_below(tree, glob, names):
    assert list(FsShardSampler(tree, glob)) == below(tree, names)


def test_a_glob_may_match_the_whole_path_or_uri(tree, memory):
    assert list(FsShardSampler(tree, f"{tree}/*/c.bin")) == below(tree, ["deep/c.bin"])
    assert list(FsShardSampler("memory://tree", "memory://tree/*/c.bin")) == ["memory://tree/deep/c.bin"]


def test_links_are_followed_and_a_link_upwards_is_not_for_ever(tree, tmp_path):
    fill(tmp_path / "elsewhere", ["f.bin", "g.bin"])
    root = tmp_path / "links"
    root.mkdir()
    (root / "file.bin").symlink_to(tmp_path / "elsewhere" / "f.bin")
    (root / "folder").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "up").symlink_to(root)
    expected = ["file.bin", "folder/f.bin", "folder/g.bin"]
    assert list(FsShardSampler(root)) == below(root, expected)
    assert list(FsShardSampler(f"file://{root}")) == below(f"file://{root}", expected)


def test_an_empty_file_is_a_shard_and_an_empty_object_for_a_directory_is_none(memory):
    memory.store.clear()
    for path in ("/tree/empty.bin", "/tree/deep/a.bin", "/tree/deep", "/tree/other/"):
        memory.store[path] = MemoryFile(memory, path, b"x" if path.endswith("a.bin") else b"")
    assert list(FsShardSampler("memory://tree")) == ["memory://tree/deep/a.bin", "memory://tree/empty.bin"]


def test_a_chain_of_file_systems_opens_as_it_was_given(memory, tmp_path):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as archive:
        archive.writestr("folder/a.bin", "in the archive")
    archive_uri = f"file://{tmp_path}/all.zip"
    assert list(FsShardSampler(f"zip://folder::{archive_uri}")) == [f"zip://folder/a.bin::{archive_uri}"]
    assert list(FsShardSampler(f"zip://::{archive_uri}")) == [f"zip://folder/a.bin::{archive_uri}"]
    assert list(FsShardSampler(f"zip::{archive_uri}")) == [f"zip://folder/a.bin::{archive_uri}"]
    assert content(f"zip://folder/a.bin::{archive_uri}") == "in the archive"
    shards = list(FsShardSampler("simplecache::memory://tree"))
    assert shards == below("simplecache::memory://tree", TREE)
    assert content(shards[0]) == "x"


class Hosted(MemoryFileSystem):
    """Files of one account; a name that it gives says no account, host or branch."""

    protocol = ("hosted", "hosteds")
    store, pseudo_dirs = {"/folder/a.bin": MemoryFile(data=b"x")}, ["", "/folder"]

    @classmethod
    def _strip_protocol(cls, path):
        account_and_path = path.partition("://")[2] if "://" in path else "/" + path.lstrip("/")
        return "/" + account_and_path.partition("/")[2].strip("/")

    def unstrip_protocol(self, name):
        return f"hosted://{name.lstrip('/')}"


@pytest.mark.parametrize(
    ("uri", "shard"),
    [
        ("hosted://box@account.net/folder", "hosted://box@account.net/folder/a.bin"),
        ("hosteds://box@account.net/folder/", "hosteds://box@account.net/folder/a.bin"),
        ("simplecache::hosteds://box@account.net/folder", "simplecache::hosteds://box@account.net/folder/a.bin"),
    ],
)
def test_what_a_uri_says_of_hosts_and_accounts_is_kept(uri, shard):
    for protocol in Hosted.protocol:
        fsspec.register_implementation(protocol, Hosted, clobber=True)
    assert list(FsShardSampler(uri)) == [shard]


def test_options_reach_the_file_system_as_plain_values(tree):
    options = OmegaConf.create({"auto_mkdir": True, "nested": {"a": [1, 2]}})
    assert list(FsShardSampler(f"file://{tree}", storage_options=options)) == below(f"file://{tree}", TREE)
    seen = fsspec.filesystem("file", auto_mkdir=True, nested={"a": [1, 2]}).storage_options
    assert type(seen["nested"]) is dict
    assert type(seen["nested"]["a"]) is list


@pytest.mark.parametrize(
    ("arguments", "where", "message"),
    [
        ({"uri": "{tree}/none"}, "uri", "does not exist"),
        ({"uri": "{tree}/*.bin"}, "uri", "pass a pattern as glob"),
        ({"uri": "{tree}/broken"}, "uri", "does not exist"),
        ({"uri": "file://{tree}/none"}, "uri", "does not exist"),
        ({"uri": "memory://none"}, "uri", "does not exist"),
        ({"uri": "unheard://of"}, "uri", "Protocol not known"),
        ({"uri": "zip://::file://{tree}/none.zip"}, "uri", "fsspec"),
        ({"glob": "*.parquet"}, "glob", "one of the 11 files under"),
        ({"glob": "*/d.bin"}, "glob", "** stands for folders at any depth"),
        ({"uri": "{tree}/_temporary/empty"}, "uri", "there are none under it"),
        ({"uri": "{tree}/_temporary", "recursive": False, "glob": "*.txt"}, "glob", "one of the 1 files"),
        ({"uri": "{tree}/folders", "recursive": False}, "uri", "there are none in it"),
        ({"uri": "{tree}/deep/.git/..", "recursive": False, "glob": "x"}, "glob", "one of the 1 files"),
        ({"uri": "{tree}/hidden"}, "uri", "all 2 under it are hidden"),
    ],
)
def test_what_cannot_be_listed_is_refused_by_the_argument(tmp_path, arguments, where, message):
    fill(tmp_path, TREE + HIDDEN)
    uri = arguments.pop("uri", "{tree}")
    (tmp_path / "_temporary" / "empty").mkdir()
    if "folders" in uri:
        fill(tmp_path, ["folders/only/a.bin"])
    if "hidden" in uri:
        fill(tmp_path, ["hidden/_a", "hidden/.b/c"])
    if "broken" in uri:
        (tmp_path / "broken").symlink_to(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match=rf"^{where} = ") as raised:
        FsShardSampler(uri.format(tree=tmp_path), **arguments)
    assert message in str(raised.value)


def test_a_stores_refusal_says_what_was_listed_and_what_takes_credentials(monkeypatch):
    def refuse(*_, **__):
        raise PermissionError("Unable to locate credentials")

    monkeypatch.setattr(type(fsspec.filesystem("memory")), "find", refuse)
    with pytest.raises(DownloadError, match=r"memory://bucket/train.*\n.*Unable to locate") as raised:
        FsShardSampler("memory://bucket/train")
    assert isinstance(raised.value.__cause__, PermissionError)
    assert raised.value.is_refused
    assert raised.value.__notes__ == [
        "fkat_data: while listing 'memory://bucket/train'; storage_options takes credentials and endpoints"
    ]
