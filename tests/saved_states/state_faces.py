"""All cases of kept states, by face."""

import data_loader_states
import mixture_states
import sharded_states
import streaming_states
from state_cases import GOLDEN

FACES = {
    "sharded": sharded_states.CASES,
    "data_loader": data_loader_states.CASES,
    "streaming": streaming_states.CASES,
    "mixture": mixture_states.CASES,
}


def path_of(face, name):
    """Return the file of a case."""
    kept = name.replace(" ", "_").replace("'", "").replace(".", "_")
    return GOLDEN / face / f"{kept}.json"
