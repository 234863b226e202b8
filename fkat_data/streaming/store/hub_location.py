"""Read the URL of a directory on the Hugging Face hub."""

import re
from typing import NamedTuple
from urllib.parse import quote, unquote

from fkat_data.errors import ConfigurationError

_URL = re.compile(
    r"hf://(?:(?P<kind>datasets|models|spaces)/)?(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<path>.*))?",
    re.ASCII | re.DOTALL,
)
_DEFAULT_REVISION = "main"
_FORM = "hf://datasets/OWNER/NAME[@REVISION][/DIRECTORY]"


class HubLocation(NamedTuple):
    """A directory in a repository of the hub.

    Attributes:
        kind: "datasets", "models" or "spaces".
        repository: Its owner and name, with a slash between them.
        revision: A branch, a tag, a commit, or a reference such as ``refs/convert/parquet``.
        directory: The directory, without slashes at its ends; "": the whole repository.
    """

    kind: str
    repository: str
    revision: str
    directory: str

    @property
    def api_url(self) -> str:
        """The repository in the hub's API, below the endpoint."""
        return f"/api/{self.kind}/{self.repository}"

    @property
    def page_url(self) -> str:
        """The repository's page, below the endpoint."""
        return f"/{self.repository}" if self.kind == "models" else f"/{self.kind}/{self.repository}"

    @property
    def revision_name(self) -> str:
        """What identifies the revision."""
        return f"{self.kind}/{self.repository}@{self.revision}"

    def file_url(self, name: str, commit: str) -> str:
        """Return where a file of the directory is, below the endpoint."""
        return f"{self.page_url}/resolve/{commit}/{quote(self.path(name))}"

    def path(self, name: str) -> str:
        """Return the path of a file of the directory in its repository."""
        return f"{self.directory}/{name}" if self.directory else name


def hub_location(url: str, revision: str | None = None) -> HubLocation:
    """Return the directory that a URL names.

    Args:
        url: A URL that begins with ``hf://``. A slash in a revision is written as ``%2F``, except in ``refs/convert/``
            and ``refs/pr/``.
        revision: The revision, if the URL has none.

    Raises:
        ConfigurationError: The URL names no repository, or another revision than ``revision``.
    """
    found = _URL.fullmatch(url)
    if found is None or found["owner"] in ("datasets", "models", "spaces"):
        raise ConfigurationError("remote", url, f"a URL of the form {_FORM}")
    given = unquote(found["revision"] or "")
    if given and revision and given != revision:
        raise ConfigurationError("storage_options", revision, f"the revision of {url}, or none")
    directory = (found["path"] or "").rstrip("/")
    if any(part in ("", ".", "..") for part in directory.split("/")) and directory:
        raise ConfigurationError("remote", url, "a directory without empty parts, . and ..")
    kind = found["kind"] or "models"
    return HubLocation(kind, f"{found['owner']}/{found['name']}", given or revision or _DEFAULT_REVISION, directory)
