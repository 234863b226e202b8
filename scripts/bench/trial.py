"""Runs one trial in a process of its own: ``trial.py MODULE JSON`` calls that module's ``trial`` and prints JSON.

Light at its top: torch's spawned workers import it again.
"""

import importlib
import json
import sys


def main() -> None:
    module, arguments = sys.argv[1:]
    measured = importlib.import_module(module).trial(**json.loads(arguments))
    print(json.dumps(measured), flush=True)


if __name__ == "__main__":
    main()
