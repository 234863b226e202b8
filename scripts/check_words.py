"""Refuse words that the field does not use: each with what to say instead.

    python scripts/check_words.py            what stands where; exit code 1 if there is any
    python scripts/check_words.py --count    how many there are in 10,000 lines of the package

A word that belongs to a quotation or to another program's interface goes into ALLOWED, with its line.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDERS = ("fkat_data", "scripts", "docs")

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

#: (file, line's text): what stays, because somebody else's interface has it
ALLOWED: set[tuple[str, str]] = set()


def found_in(folders: tuple[str, ...] = FOLDERS) -> list[str]:
    patterns = [(re.compile(pattern, re.IGNORECASE), instead) for pattern, instead in BANISHED.items()]
    found: list[str] = []
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*")):
            if (
                path.suffix not in {".py", ".yaml", ".toml", ".md", ""}
                or not path.is_file()
                or path == Path(__file__).resolve()
            ):
                continue
            name = str(path.relative_to(ROOT))
            for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
                for pattern, instead in patterns:
                    match = pattern.search(line)
                    if match and (name, line.strip()) not in ALLOWED:
                        found.append(f"{name}:{number}: {match[0].strip()!r}: say {instead}\n    {line.strip()}")
    return found


def main() -> int:
    found = found_in(("fkat_data",)) if "--count" in sys.argv[1:] else found_in()
    if "--count" in sys.argv[1:]:
        num_lines = sum(len(path.read_text().splitlines()) for path in (ROOT / "fkat_data").rglob("*.py"))
        print(f"{len(found)} banished words in {num_lines} lines: {10_000 * len(found) / num_lines:.0f} in 10,000")
        return 0
    if found:
        print(*found, sep="\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
