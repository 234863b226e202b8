"""The program ``fkat-data``, and ``python -m fkat_data``. Without the extra ``cli`` it says what to install."""

import importlib
import io
import sys

from fkat_data.runtime.interruption import genuine

_OF_THE_EXTRA = {"click", "rich", "typer"}


def main() -> None:
    """Run the command given on the command line.

    Raises:
        SystemExit: The command ended; it carries the exit code.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A file's name may have bytes that are no text, and a terminal may lack characters: they are written out.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        commands = importlib.import_module("fkat_data.tools.cli")
    except genuine(ModuleNotFoundError) as error:
        if error.name not in _OF_THE_EXTRA:
            raise
        raise SystemExit(f"fkat-data needs {error.name}: pip install 'fkat_data[cli]'") from error
    commands.app()


if __name__ == "__main__":
    main()
