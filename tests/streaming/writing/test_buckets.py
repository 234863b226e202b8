"""Writing to a bucket: where it goes, what it never creates, and what it removes."""

import re
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
from written_examples import COLUMNS, good_samples_of, tens, write, write_items

from fkat_data.errors import ConfigurationError
from fkat_data.streaming import MDSWriter, StreamingDataset, merge_index, write_parallel

SAMPLES = good_samples_of((0, 60))


def keys(server):
    return sorted(found["Key"] for found in server.client().list_objects_v2(Bucket="bucket").get("Contents", []))


def ids(remote, local, **options):
    dataset = StreamingDataset(remote=remote, local=str(local), batch_size=1, **options)
    return [dataset[index]["id"] for index in range(dataset.num_samples)]


def test_the_endpoint_of_the_environment_is_used_for_writing_as_for_reading(bucket, tmp_path):
    write("s3://bucket/train", SAMPLES)
    assert ids("s3://bucket/train", tmp_path) == list(range(60))


def test_options_of_the_store_are_used_for_writing_and_merging(bucket, tmp_path, monkeypatch):
    for name in ("S3_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    options = bucket.options()
    write("s3://bucket/all/0", SAMPLES[:30], storage_options=options)
    write("s3://bucket/all/1", SAMPLES[30:], storage_options=options)
    assert merge_index("s3://bucket/all", storage_options=options) == 60
    assert ids("s3://bucket/all", tmp_path, storage_options=options) == list(range(60))
    write_items("s3://bucket/parts", tens(2), storage_options=options)
    assert ids("s3://bucket/parts", tmp_path / "parts", storage_options=options) == list(range(20))


def test_a_mistyped_bucket_is_refused_and_not_created(bucket):
    for write_something in (
        lambda: MDSWriter(columns=COLUMNS, out="s3://bukcet/train"),
        lambda: write_parallel(None, None, [1], out="s3://bukcet/train", executor=None),
    ):
        with pytest.raises(ConfigurationError, match=r"out = 's3://bukcet/train': expected a bucket that exists"):
            write_something()
    with pytest.raises(ConfigurationError, match="a URL with a bucket"):
        MDSWriter(columns=COLUMNS, out="s3:///train")
    assert [found["Name"] for found in bucket.client().list_buckets()["Buckets"]] == ["bucket"]


def test_the_files_of_a_dataset_that_is_replaced_are_removed_and_others_stay(bucket):
    write("s3://bucket/train", SAMPLES)
    assert len(keys(bucket)) > 5
    for name in ("train/notes.txt", "train/shard.00099.mds", "train2/shard.00000.mds"):
        bucket.put(name, b"mine")
    with pytest.raises(FileExistsError, match="exist_ok=True"):
        MDSWriter(columns=COLUMNS, out="s3://bucket/train")
    with MDSWriter(columns=COLUMNS, out="s3://bucket/train", exist_ok=True) as writer:
        assert "train/index.json" not in keys(bucket), "shards of two datasets would look like one"
        writer.write(SAMPLES[0])
    assert keys(bucket) == [
        "train/index.json",
        "train/notes.txt",
        "train/shard.00000.mds",
        "train2/shard.00000.mds",
    ]


def test_fewer_items_leave_no_part_of_the_dataset_before(bucket):
    out = "s3://bucket/parts"
    assert write_items(out, tens(5)) == 50
    assert write_items(out, tens(2), exist_ok=True) == 20
    assert merge_index(out) == 20
    assert [key for key in keys(bucket) if re.search(r"/00000[2-9]/", key)] == []
    bucket.client().delete_object(Bucket="bucket", Key="parts/index.json")
    with pytest.raises(FileExistsError, match="parts/000000"):
        write_items(out, tens(1))
    assert write_items(out, tens(1), exist_ok=True) == 10
    assert merge_index(out) == 10


def test_attempts_that_do_not_count_leave_nothing_in_a_bucket(bucket, tmp_path):
    class Twice(ThreadPoolExecutor):
        """Runs each call twice, and reports one of the two."""

        def submit(self, fn, /, *args):
            item = args[3]
            futures = [super(Twice, self).submit(fn, *args) for _ in range(2)]
            return futures[item[0] % 2]

    with Twice(4) as executor:
        items = [(3 * number, 3) for number in range(6)]
        write_parallel(
            partial(MDSWriter, columns=COLUMNS), good_samples_of, items, out="s3://bucket/twice", executor=executor
        )
    assert ids("s3://bucket/twice", tmp_path) == list(range(18))
    folders = [key.split("/")[1] for key in keys(bucket)]
    assert folders.pop() == "index.json"
    assert [folder.partition(".")[0] for folder in folders] == [f"{number:06}" for number in range(6) for _ in "if"]


FOREIGN_INDEX = b'{"shards": [], "version": 2}'


def test_two_writers_of_one_url_exclude_each_other(bucket):
    first = MDSWriter(columns=COLUMNS, out="s3://bucket/train")
    for options in ({}, {"exist_ok": True}):
        with pytest.raises(ConfigurationError, match="no other writer is writing"):
            MDSWriter(columns=COLUMNS, out="s3://bucket/train/", **options)
    first.write(SAMPLES[0])
    bucket.put("train/index.json", FOREIGN_INDEX)
    with pytest.raises(FileExistsError, match="another writer has written a dataset"):
        first.finish()
    assert bucket.client().get_object(Bucket="bucket", Key="train/index.json")["Body"].read() == FOREIGN_INDEX
    MDSWriter(columns=COLUMNS, out="s3://bucket/train", exist_ok=True).abandon()
