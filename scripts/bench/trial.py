"""Run one trial: ``trial.py MODULE JSON`` calls that module's ``trial`` and prints the result as JSON.

It imports little at the top, because torch's spawned workers import it again.
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
