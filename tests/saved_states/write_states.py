"""Write the kept states of cases that have none yet, with what follows them.

    PYTHONPATH=. python tests/saved_states/write_states.py            # of all new cases
    PYTHONPATH=. python tests/saved_states/write_states.py streaming  # of one face

A file that is there is never written again: users' checkpoints are like it. Where a loader is to go on in another way
than it did, that is a decision, and the file is deleted by hand.
"""

import sys
import tempfile
from pathlib import Path

from state_cases import record, write
from state_faces import FACES, path_of


def main() -> None:
    """Write the states of the faces that are named, or of all."""
    with tempfile.TemporaryDirectory() as folder:
        for face in sys.argv[1:] or FACES:
            for name, case in FACES[face].items():
                path = path_of(face, name)
                if path.exists():
                    continue
                try:
                    write(path, record(case, Path(folder)))
                except Exception as error:
                    error.add_note(f"in the case {name!r} of {face}")
                    raise
                print(f"{path.relative_to(path.parents[5])}")


if __name__ == "__main__":
    main()
