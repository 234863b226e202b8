import ast
import importlib
import pickle
from pathlib import Path

import pytest

import fkat_data
from fkat_data import errors
from fkat_data.errors import (
    CacheFullError,
    ConfigurationError,
    DownloadError,
    FkatDataError,
    MemoryLimitError,
    OutstandingError,
    RankMismatchError,
    ReplayMismatchError,
    SampleError,
    ShardCorruptError,
    ShardNotFoundError,
    SkippedSamplesError,
    StaleIteratorError,
    StateMismatchError,
    ValueLimitError,
    WorkerDiedError,
    WorkerError,
    WorkerStalledError,
)

#: One of each, and what its message says.
EXAMPLES = [
    (ConfigurationError("batch_size", -1, "a positive number"), "batch_size = -1: expected a positive number"),
    (ValueLimitError("file", "a.jsonl", "less"), "file = 'a.jsonl': expected less"),
    (StateMismatchError("fingerprint.seed", 1, 2), "state field 'fingerprint.seed': saved 1, expected 2"),
    (StateMismatchError("dp_size", 4, 2, "resume with 4"), "state field 'dp_size': saved 4, expected 2; resume with 4"),
    (StaleIteratorError("replaced"), "replaced"),
    (
        RankMismatchError("seed", "7 on rank 0; 8 on ranks 1, 2"),
        "ranks disagree on seed: 7 on rank 0; 8 on ranks 1, 2",
    ),
    (WorkerError("failed"), "failed"),
    (
        WorkerDiedError(12, -9, "a.parquet", 1, 7),
        (
            "worker 12 was killed by signal 9 (SIGKILL) while producing microbatch 7 of shard 'a.parquet' in epoch 1. "
            "This signal often means that memory ran out"
        ),
    ),
    (WorkerDiedError(12, None, "a", 0, 0), "worker 12 died while producing microbatch 0 of shard 'a' in epoch 0"),
    (
        WorkerDiedError(12, 1, "a", 0, 0, "Bus error", "node7", 2),
        (
            "worker 12 on node7 ended with exit code 1 while producing microbatch 0 of shard 'a' in epoch 0, "
            "after 2 restarts in this epoch. Its last output on stderr:\nBus error"
        ),
    ),
    (
        WorkerStalledError(12, 60.04, "a", 1, 7, 'File "x.py", line 3 in read', "node7"),
        (
            "worker 12 on node7 sent nothing for 60.0 s (stall_timeout_s) while the trainer waited for microbatch 7 of "
            "shard 'a' in epoch 1. Its Python stacks:\nFile \"x.py\", line 3 in read"
        ),
    ),
    (
        ReplayMismatchError("a", 1, 7),
        (
            "after a worker's restart, microbatch 7 of shard 'a' in epoch 1 differs from the one delivered before: the "
            "dataset uses randomness other than the global generators of python, numpy and torch, or keeps state "
            "between microbatches (run `fkat-data verify-resume`)"
        ),
    ),
    (
        MemoryLimitError(3000, 2000, 1500, "by you"),
        "the next microbatch needs 2,000 bytes of shared memory, but 1,500 of the worker's 3,000 are in use: by you",
    ),
    (ShardNotFoundError("a.parquet", "no such file"), "shard 'a.parquet': no such file"),
    (
        CacheFullError("/cache/a.mds", 2000, 1500, "[Errno 28] No space left on device"),
        (
            "no space for /cache/a.mds: it needs 2,000 bytes, 1,500 are free on its disk, and "
            "evicting files from the cache did not help ([Errno 28] No space left on device)"
        ),
    ),
    (ShardCorruptError(["a"], "3 rows, 4 expected"), "shard ['a']: 3 rows, 4 expected"),
    (
        ShardCorruptError.of_field("a/index.json", "shards[1].samples", "an integer of at least 0", -1),
        "shard 'a/index.json': shards[1].samples is -1: expected an integer of at least 0",
    ),
    (
        DownloadError("s3://b/shard.00000.mds", [("status 503", 0.24), ("no byte for 30 s", 30.04)]),
        (
            "shard 's3://b/shard.00000.mds': download failed after 2 attempts:\n"
            "  1. status 503 (0.2 s)\n  2. no byte for 30 s (30.0 s)"
        ),
    ),
    (SampleError("label", "three", "an int"), "column 'label', value 'three': expected an int"),
    (
        OutstandingError(64, 0, 3, "at most 64 may be (max_outstanding)"),
        (
            "64 delivered microbatches are outstanding, the oldest at step 3 of epoch 0: at most 64 may be "
            "(max_outstanding). Call commit(ticket) or release(ticket) for some of them first"
        ),
    ),
    (
        SkippedSamplesError(2, 1001, 1000, "sample 7: ValueError: no seven"),
        (
            "1,001 samples of epoch 2 were left out, and at most 1,000 may be (max_skipped_samples). "
            "The last: sample 7: ValueError: no seven"
        ),
    ),
]

#: The classes of errors; those that it imports are of other modules.
PUBLIC = {
    name
    for name, kind in vars(errors).items()
    if isinstance(kind, type) and issubclass(kind, errors.FkatDataError) and not name.startswith("_")
}


@pytest.mark.parametrize(("error", "text"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_every_error_says_what_was_found_and_does_so_after_two_pickles(error, text):
    copy = pickle.loads(pickle.dumps(pickle.loads(pickle.dumps(error))))
    assert type(copy) is type(error)
    assert str(copy) == text
    assert {key: str(value) for key, value in vars(copy).items()} == {
        key: str(value) for key, value in vars(error).items()
    }
    # One that was sent as text has the same fields, of unknown values.
    again = type(error)(text)
    assert (str(again), vars(again)) == (text, dict.fromkeys(vars(error)))


def exceptions_of_the_package():
    """Return every exception class that a module of the package defines."""
    kinds = []
    for path in sorted(Path(fkat_data.__file__).parent.rglob("*.py")):
        names = [node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)]
        if any(name.endswith(("Error", "Exception", "Gone", "Closed")) for name in names):
            parts = path.relative_to(Path(fkat_data.__file__).parent.parent).with_suffix("").parts
            module = importlib.import_module(".".join(parts))
            kinds += [getattr(module, name) for name in names]
    return [kind for kind in kinds if issubclass(kind, BaseException)]


@pytest.mark.parametrize("kind", exceptions_of_the_package(), ids=lambda kind: kind.__name__)
def test_every_exception_can_be_made_from_its_text_alone(kind):
    error = kind("the child has died")
    assert str(error) == "the child has died"
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), vars(copy)) == (str(error), vars(error))


@pytest.mark.parametrize(("error", "text"), EXAMPLES, ids=lambda value: type(value).__name__)
def test_every_error_is_ours_and_what_pythons_own_would_be(error, text):
    assert isinstance(error, FkatDataError)
    standard = {
        ConfigurationError: ValueError,
        ValueLimitError: ConfigurationError,
        StateMismatchError: ValueError,
        RankMismatchError: RuntimeError,
        StaleIteratorError: RuntimeError,
        MemoryLimitError: MemoryError,
        ShardNotFoundError: FileNotFoundError,
        SampleError: ValueError,
        OutstandingError: RuntimeError,
        SkippedSamplesError: RuntimeError,
    }.get(type(error), Exception)
    assert isinstance(error, standard)


def test_a_long_value_is_shortened():
    assert len(str(ConfigurationError("x", "y" * 10_000, "less"))) < 300


def test_the_tree_in_the_docstring_is_the_tree():
    for name in PUBLIC:
        assert name in errors.__doc__


def test_every_exported_error_has_an_example_here():
    examples = {type(error).__name__ for error, _ in EXAMPLES}
    assert PUBLIC - examples == {"FkatDataError", "ShardError"}


def test_a_value_that_cannot_be_shown_does_not_hide_the_error():
    class Unshown:
        def __repr__(self):
            raise RuntimeError("no words")

    assert "dataloader_factory" in str(ConfigurationError("dataloader_factory", Unshown(), "another"))
