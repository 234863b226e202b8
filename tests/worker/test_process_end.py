import os
import select
import subprocess
import sys
import time

import pytest

from fkat_data.worker.child import end_of, has_ended

pytestmark = pytest.mark.usefixtures("processes")


@pytest.mark.parametrize("is_missing", [False, True], ids=["as it is", "without pidfds"])
def test_the_end_of_a_child_is_seen_before_and_after_it_is_reaped(monkeypatch, nothing_left_behind, is_missing):
    if is_missing:
        for name in ("pidfd_open", "waitid"):
            monkeypatch.delattr(os, name, raising=False)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        end = end_of(child.pid)
        assert not os.get_inheritable(end.fileno())
        assert not has_ended(child.pid)
        assert not select.select([end], [], [], 0.1)[0]
        child.stdin.write(b"\n")
        child.stdin.close()
        assert select.select([end], [], [], 10)[0] == [end]
        assert has_ended(child.pid)
        assert child.wait() == 0
        assert has_ended(child.pid)
        end.close()


def test_a_descriptor_that_was_closed_disturbs_nothing(monkeypatch, nothing_left_behind):
    for name in ("pidfd_open", "waitid"):
        monkeypatch.delattr(os, name, raising=False)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        end_of(child.pid).close()
        child.kill()
        child.stdin.close()
    time.sleep(0.1)
