"""The blocks of code in a Markdown document."""

import re
from typing import NamedTuple

_BLOCK = re.compile(
    r"(?:^<!-- (?:not run: (?P<reason>[^\n]*?)|file: (?P<file>[\w.-]+)) -->\n)?"
    r"^```(?P<language>\w+)\n(?P<text>.*?)^```$",
    re.DOTALL | re.MULTILINE,
)


class Block(NamedTuple):
    """One block.

    Attributes:
        language: What follows the fence.
        text: The code.
        line: The line of its fence, from 1.
        reason: Why it is not run, from a comment above the block; None if it is.
        file: The name of the file that the reader saves it as, from a comment above the block; None if there is none.
    """

    language: str
    text: str
    line: int
    reason: str | None
    file: str | None = None


def blocks_of(document):
    """Return the blocks of a document's text that name a language."""
    return [
        Block(
            match["language"],
            match["text"],
            document.count("\n", 0, match.start("language")) + 1,
            match["reason"],
            match["file"],
        )
        for match in _BLOCK.finditer(document)
    ]
