"""What the site adds to docs/: the repository's own pages, links that work there, and what the search puts first.

Pages of docs/ link to files of the repository as they lie on disk, so that links work where the repository is read.
On the site, links to pages lead to those pages; a link to any other file of the repository becomes its text.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).resolve().parents[1]
_DOCS = "docs/"
#: Files of the repository's root that are pages of the site.
_PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
}
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|\[[^\]]*\])*)\]\((?!\w+:|#)([^)\s#]*)(#[^)\s]*)?\)")
#: A document that a docstring names.
_NAMED = re.compile(r"<code>docs/([\w/-]+)\.md</code>")
#: What a package opens to others, which a test compares with their imports.
_FOR_MAINTAINERS = re.compile(r"<p>Open to other packages: .*?</p>", re.DOTALL)
#: How much a hit on a page counts for the search: a decision rarely answers a reader's question.
_BOOSTS = {
    "howto/resume.md": 16.0,
    "howto/extend.md": 1.0,
    "howto/": 4.0,
    "streaming/order.md": 8.0,
    "reference/loader.md": 4.0,
    "tutorial/": 2.0,
    "concepts/": 2.0,
    "adr/": 0.2,
    "changelog.md": 0.2,
    "contributing.md": 0.2,
}
_FENCE = re.compile(r"(^```.*?^```$)", re.DOTALL | re.MULTILINE)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages of the repository's root."""
    from mkdocs.structure.files import File  # noqa: PLC0415 - only the site has it

    for name, page in _PAGES.items():
        files.append(File.generated(config, page, content=(_ROOT / name).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Make links of a page lead to pages of the site."""
    source = page.file.src_uri
    for begin, boost in _BOOSTS.items():
        if source.startswith(begin):
            page.meta.setdefault("search", {"boost": boost})
    names = {page: name for name, page in _PAGES.items()}
    # As it lies in the repository.
    file = names.get(source, _DOCS + source)
    parts = _FENCE.split(markdown)
    return "".join(part if part.startswith("```") else linked(part, file, source) for part in parts)


def on_page_content(html: str, page: Any, files: Any, **_: Any) -> str:
    """Make the documents that a docstring names links to their pages, and leave out what is for maintainers."""

    def replace(match: re.Match[str]) -> str:
        named = files.get_file_from_path(f"{match[1]}.md")
        return f'<a href="{named.url_relative_to(page.file)}">{named.page.title}</a>' if named else match[0]

    return _NAMED.sub(replace, _FOR_MAINTAINERS.sub("", html))


def on_post_page(output: str, **_: Any) -> str:
    """Let the link to the repository be one: the theme would ask its host for numbers of the repository."""
    return output.replace(' data-md-component="source"', "")


def linked(text: str, file: str, source: str) -> str:
    """Return a text of a page with links for the site.

    Args:
        text: Its Markdown, without blocks of code.
        file: The file that the links start from, in the repository.
        source: The page that they start from, on the site.
    """
    # A picture needs no page: it stands beside them.
    text = re.sub(r"(!\[[^\]]*\]\()docs/", r"\1", text) if source == "index.md" else text

    def replace(match: re.Match[str]) -> str:
        label, target, anchor = match[1], match[2], match[3] or ""
        path = posixpath.normpath(posixpath.join(posixpath.dirname(file), target))
        if (_ROOT / path).is_dir() and (_ROOT / path / "README.md").exists():
            path = f"{path}/README.md"
        page = _PAGES.get(path) or (path.removeprefix(_DOCS) if path.startswith(_DOCS) else None)
        if page is None or (_ROOT / path).is_dir():
            return label
        return f"[{label}]({posixpath.relpath(page, posixpath.dirname(source) or '.')}{anchor})"

    return _LINK.sub(replace, text)
