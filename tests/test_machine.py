import json
import os
import sys

import psutil
import pytest

from fkat_data.errors import ConfigurationError
from fkat_data.runtime import machine


@pytest.fixture(params=["as it is", "as on macOS"])
def either_way(request, monkeypatch):
    """What Linux is asked, and what another system is."""
    if request.param == "as on macOS":
        monkeypatch.setattr(sys, "platform", "darwin")
        monkeypatch.setattr(machine, "_BOOT", machine.Path("/none"))
        monkeypatch.delattr(os, "sched_getaffinity", raising=False)


pytestmark = pytest.mark.usefixtures("either_way")


def test_a_module_is_returned_or_named_with_what_brings_it_unless_it_lacks_something_itself(tmp_path, monkeypatch):
    assert machine.required("json", "json") is json
    with pytest.raises(ConfigurationError, match=r"no_such_package.*pip install 'fkat_data\[extra\]'"):
        machine.required("no_such_package.part", "extra")
    (tmp_path / "half_installed.py").write_text("import no_such_package")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        machine.required("half_installed", "extra")
    assert "half_installed" not in sys.modules


def test_the_cpus_are_counted():
    assert 1 <= machine.num_usable_cpus() <= os.cpu_count()


def test_a_process_has_one_start_and_none_after_its_end():
    ours, parents = machine.started_at(os.getpid()), machine.started_at(os.getppid())
    assert 0 < parents <= ours == machine.started_at(os.getpid())
    assert machine.started_at(2**22 + 1) == 0


def test_the_start_of_the_machine_stays():
    assert machine.boot_text() == machine.boot_text() != ""


def test_a_path_in_a_file_system_is_the_same_for_all_mounts_of_it(tmp_path, monkeypatch):
    mounts = """\
1 0 254:0 / / rw - ext4 /dev/vda rw
2 1 254:0 /home/a\\040b /bound rw shared:1 master:2 - ext4 /dev/vda rw
3 1 0:50 / /volumes rw - nfs4 host:/volumes rw
4 1 0:51 / /one rw - nfs4 host:/one rw
5 1 0:51 / /two rw - nfs4 host:/one/two rw
odd
8 1 254:0 / / rw
9 1 254:0 / / rw -
6 1 0:60 / /bound/deep rw - tmpfs none rw
7 1 254:0 /other /bound rw - ext4 /dev/vda rw
"""
    (tmp_path / "mounts").write_text(mounts.rpartition("7 1")[0])
    monkeypatch.setattr(machine, "_MOUNTS", tmp_path / "mounts")
    assert machine.path_in_file_system("/bound/c") == machine.path_in_file_system("/home/a b/c") == "254:0 /home/a b/c"
    assert machine.path_in_file_system("/bound") == machine.path_in_file_system("/home/a b")
    assert machine.path_in_file_system("/boundless") == "254:0 /boundless"
    assert machine.path_in_file_system("/bound/deep/c") == "0:60 /c"
    assert machine.path_in_file_system("/volumes/one") != machine.path_in_file_system("/volumes/two")
    assert machine.path_in_file_system("/one/two") == machine.path_in_file_system("/two") == ""
    (tmp_path / "mounts").write_text(mounts)
    assert machine.path_in_file_system("/bound/c") == "254:0 /other/c"
    monkeypatch.setattr(machine, "_MOUNTS", tmp_path / "none")
    assert machine.path_in_file_system("/bound/c") == ""


def test_the_variables_at_the_start_are_those_of_now_but_for_what_was_set_since(monkeypatch):
    name, value = next((name, value) for name, value in psutil.Process().environ().items() if name != "PYTHONPATH")
    monkeypatch.setenv(name, value + "!")
    monkeypatch.setenv("FKAT_SET_SINCE", "1")
    assert machine.variables_at_start()[name] == value
    assert "FKAT_SET_SINCE" not in machine.variables_at_start()


def test_workers_are_refused_on_windows_alone(monkeypatch):
    machine.refuse_workers("multiprocessing", value=True)
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(
        ConfigurationError,
        match=r"multiprocessing = True: expected False, or workers=.threads., on Windows: .* Linux or macOS",
    ):
        machine.refuse_workers("multiprocessing", value=True)
