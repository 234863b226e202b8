import pytest

from fkat_data.errors import WorkerDiedError, WorkerError
from fkat_data.worker.failure import pack_failure, unpack_failure


def raised(error):
    try:
        raise error
    except BaseException as caught:  # noqa: BLE001
        return caught


def told(error):
    return unpack_failure(pack_failure(raised(error)))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("a"),
        KeyError("k"),
        FileNotFoundError(2, "gone", "path"),
        WorkerDiedError(1, -9, "s", 0, 0),
        OSError(),
    ],
    ids=repr,
)
def test_an_exception_arrives_as_itself_with_the_traceback_as_a_note(error):
    back = told(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert "in raised\n    raise error" in back.__notes__[-1]


def test_notes_that_were_there_stay_first():
    error = ValueError("a")
    error.add_note("first")
    assert told(error).__notes__[0] == "first"
    assert len(told(error).__notes__) == 2


def test_causes_are_told_in_the_text():
    error = ValueError("outer")
    error.__cause__ = raised(KeyError("inner"))
    assert "KeyError: 'inner'" in told(error).__notes__[-1]


def test_a_local_class_comes_back_as_the_callers_own():
    class LocalError(Exception):
        pass

    assert type(told(LocalError("x"))) is LocalError


def test_one_that_becomes_another_type_is_told_by_a_worker_error():
    class ChangingError(Exception):
        def __reduce__(self):
            return str, ("not an exception",)

    back = told(ChangingError("x"))
    assert type(back) is WorkerError
    assert "ChangingError" in str(back)


def test_a_huge_text_is_cut_in_the_middle():
    back = told(ValueError("x" * 10_000_000 + "the end"))
    assert len("".join(back.__notes__)) < 200_000
    assert "the end" in "".join(back.__notes__)


def test_an_exception_that_cannot_be_shown_is_still_told():
    class UnprintableError(Exception):
        def __str__(self):
            raise RuntimeError

        __repr__ = __str__

    assert "UnprintableError" in "".join(told(UnprintableError()).__notes__)
