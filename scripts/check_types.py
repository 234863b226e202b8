"""Check what users' type checkers see: how much of the package has types, and what they make of a user's code.

Run it from the repository: ``.venv/bin/python scripts/check_types.py``.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

LEAST = 0.98
ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "tests" / "typed_use.py"


def pyright(*arguments: str | Path) -> dict[str, Any]:
    """Return what pyright reports; the package is the one beside this script, whichever is installed."""
    command = [sys.executable, "-m", "pyright", "--outputjson", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    try:
        return json.loads(done.stdout)
    except ValueError:
        sys.exit(f"pyright failed:\n{done.stdout}{done.stderr}")


def main() -> None:
    found = pyright("--pythonpath", sys.executable, "--verifytypes", "fkat_data", "--ignoreexternal")[
        "typeCompleteness"
    ]
    score = found["completenessScore"]
    print(f"types: {score:.1%} of {sum(found['exportedSymbolCounts'].values()):,} public symbols")
    if score < LEAST:
        for symbol in found["symbols"]:
            if symbol["isExported"] and not symbol["isTypeKnown"]:
                print(f"  {symbol['name']}")
        sys.exit(f"at least {LEAST:.0%} of them must have a known type")
    wrong = pyright("--pythonpath", sys.executable, EXAMPLE)["generalDiagnostics"]
    if wrong:
        sys.exit("\n".join(f"{EXAMPLE.name}:{item['range']['start']['line'] + 1}: {item['message']}" for item in wrong))


if __name__ == "__main__":
    main()
