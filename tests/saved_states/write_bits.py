"""Write the kept bits of cases that have none yet; see ``write_states.py``.

PYTHONPATH=. python tests/saved_states/write_bits.py
"""

import json
import tempfile
from pathlib import Path

from bit_cases import CASES
from state_cases import closed, text_of

from fkat_data.testing import digest

PATH = Path(__file__).parents[1] / "golden" / "face_bits.json"


def main() -> None:
    """Add the cases that the file lacks, as the first of their numbers of workers makes them."""
    kept = json.loads(PATH.read_text()) if PATH.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        for name, (make, (num_workers, *_)) in CASES.items():
            if name in kept:
                continue
            loader = make(num_workers, Path(folder))
            epochs = [list(loader) for _ in range(2)]
            kept[name] = [
                {"digest": digest(epoch), "microbatches": [text_of(microbatch) for microbatch in epoch]}
                for epoch in epochs
            ]
            closed(loader)
            print(name)
    rows = (f"  {json.dumps(name)}: [\n    " + ",\n    ".join(map(json.dumps, epochs)) for name, epochs in kept.items())
    PATH.write_text("{\n" + "\n  ],\n".join(rows) + "\n  ]\n}\n")


if __name__ == "__main__":
    main()
