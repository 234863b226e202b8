"""The order of each face and its random draws, bit for bit: a run that goes on in a newer version depends on them."""

import json
from pathlib import Path

import pytest
from bit_cases import CASES
from state_cases import closed, text_of

from fkat_data.testing import digest

# A machine may have fewer cores than torch wants for that many workers.
pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create")

GOLDEN = json.loads((Path(__file__).parents[1] / "golden" / "face_bits.json").read_text())
ALL = [(name, num_workers) for name, (_, numbers) in CASES.items() for num_workers in numbers]
IN_PROCESS = [case for case in ALL if case[1] == 0]
WITH_PROCESSES = [case for case in ALL if case[1] > 0]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return tmp_path_factory.mktemp("data")


def name_of(value):
    return str(value)


def check(name, num_workers, data, **options):
    loader = CASES[name][0](num_workers, data, **options)
    for kept in GOLDEN[name]:
        microbatches = list(loader)
        assert [text_of(microbatch) for microbatch in microbatches] == kept["microbatches"]
        assert digest(microbatches) == kept["digest"]
    closed(loader)


@pytest.mark.parametrize(("name", "num_workers"), IN_PROCESS, ids=name_of)
def test_two_epochs_have_the_kept_bits(name, num_workers, data):
    check(name, num_workers, data)


@pytest.mark.parametrize(("name", "num_workers"), WITH_PROCESSES, ids=name_of)
def test_they_have_them_with_worker_processes(name, num_workers, data, processes):
    check(name, num_workers, data)


def test_map_style_ones_have_them_with_threads(data):
    check("map-style draws of items", 2, data, workers="threads")


def test_bits_are_kept_of_each_case():
    assert set(GOLDEN) == set(CASES)
