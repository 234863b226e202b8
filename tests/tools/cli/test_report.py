from loader_examples import epoch, make
from typer.testing import CliRunner

from fkat_data.tools.cli.commands import app


def report(*arguments):
    done = CliRunner().invoke(app, ["report", *map(str, arguments)])
    return done.exit_code, done.output


def test_the_page_lies_beside_the_timeline_and_the_verdict_is_printed(tmp_path):
    loader = make(["list-a-9"], trace=tmp_path / "run.json")
    epoch(loader)
    code, output = report(tmp_path / "run.json")
    assert code == 0
    assert "the trainer waited" in output
    assert "making one: median " in output
    assert str(tmp_path / "run.html") in output
    assert "<svg" in (tmp_path / "run.html").read_text()
    code, output = report(tmp_path / "run.json", "--output", tmp_path / "other.html")
    assert (code, (tmp_path / "other.html").is_file()) == (0, True)


def test_the_page_does_not_replace_the_timeline(tmp_path):
    path = tmp_path / "run.html"
    make(["list-a-3"], trace=path).close()
    content = path.read_bytes()
    code, output = report(path)
    assert (code, path.read_bytes()) == (2, content)
    assert "--output = " in output


def test_without_a_timeline_there_is_no_report(tmp_path):
    code, output = report(tmp_path / "run.json")
    assert code == 2
    assert "cannot write the report" in output
    assert "run.json" in output
    assert list(tmp_path.iterdir()) == []
