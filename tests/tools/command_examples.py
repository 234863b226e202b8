"""Commands of the program, run in this process."""

from typer.testing import CliRunner

from fkat_data.tools import app


def run(*arguments):
    """Return the exit code of a command, and what it printed."""
    done = CliRunner().invoke(app, list(map(str, arguments)), terminal_width=200)
    return done.exit_code, done.output


def said(*arguments, code=0):
    """Return what a command printed that has ended with this exit code."""
    found, output = run(*arguments)
    assert found == code, output
    return output
