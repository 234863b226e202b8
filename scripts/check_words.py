"""Refuse words that the field does not use: each with what to say instead.

python scripts/check_words.py    what stands where; exit code 1 if there is any
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("fkat_data", "scripts", "docs")
SUFFIXES = {".py", ".yaml", ".toml", ".md", ""}

#: pattern -> what to say instead
BANISHED = {
    r"(?<!-)\banew\b": "again",
    r"\bafresh\b": "again",
    r"\bso many\b": "that many, or the number's name",
    r"\bfor so long\b": "for this long, or the limit's name",
    r"\bso often\b": "this often, or the interval's name",
    r"\blet(s|ting)? go\b": "release, drop, free",
    r"\blet_go\b": "release",
    r"(?<!is )\btold\b": "reported, called, given, notified, known",
    r"\b(is|are|was|be) told\b": "the worker reports; the caller passes",
    r"\btells? of\b": "reports, describes",
    r"\bin the place of\b": "instead of, or: replaces",
    r"\bhangs? on\b": "depends on",
    r"\bwhoever\b": "name the actor",
    r"\bwherever\b": "where, or: anywhere",
    r"\bseldom\b": "rarely",
    r"\bat birth\b": "when it starts",
    r"\bnobody\b": "no process, no caller, nothing",
    r"\bfor ever\b": "forever, or: without a timeout",
    r"\btakes? note\b": "record",
    r"\btakes? notice\b": "notice, react",
    r"\bheld against\b": "compared with",
    r"\bat last\b": "finally, in the end",
    r"\bwhence\b|\bthence\b|\bhence\b|\bthereof\b|\bthereby\b|\bherein\b|\btherein\b": "say it in full",
    r"\bhitherto\b|\bhenceforth\b|\bforthwith\b|\bupon\b|\bere\b|\bnought\b|\bnay\b": "say it in today's words",
    r"\blikewise\b": "too, also",
    r"\bas far as\b": "if, up to, where",
    r"\bby and by\b": "over time",
    r"\bas it were\b": "leave it out",
    r"\bthat there (is|are) not\b": "that does not exist",
    r"\bthat there (ever )?(was|were)\b": "that ever existed",
    r"\bat it\b(?=[,. ])": "working on it",
    r"\bof (his|her|its|their) own accord\b": "itself",
    r"\bmade of\b(?=.*\bwhat)": "consists of",
    r"(?<=[\s(])the \{[^}]*\}\. ": "shard {n}, not the {n}. shard",
    r"\b(?:not|Not) the \w+ \w+s\b": "name what does, not what does not",
}


def found_in(path: Path) -> Iterator[str]:
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    for pattern, instead in BANISHED.items():
        for number, line in enumerate(lines, start=1):
            if match := re.search(pattern, line, re.IGNORECASE):
                yield f"{path.relative_to(ROOT)}:{number}: {match[0].strip()!r}: say {instead}\n    {line.strip()}"


def main() -> int:
    paths = [path for folder in FOLDERS for path in sorted((ROOT / folder).rglob("*"))]
    paths = [path for path in paths if path.suffix in SUFFIXES and path.is_file()]
    found = [words for path in paths if path != Path(__file__).resolve() for words in found_in(path)]
    print(*found, sep="\n", end="\n" * bool(found))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
