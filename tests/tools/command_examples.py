"""Commands of the program, run in this process."""

from typer.testing import CliRunner

from fkat_data.tools import app


def run(*arguments):
    """Return the exit code of a command, and what it printed."""
    done = CliRunner().invoke(app, list(map(str, arguments)), terminal_width=200)
    return done.exit_code, done.output
