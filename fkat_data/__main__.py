"""``python -m fkat_data`` is the program ``fkat-data``."""

from fkat_data.tools.cli.program import main

if __name__ == "__main__":
    main()
