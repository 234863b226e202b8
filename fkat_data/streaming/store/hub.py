"""Read the URL of a directory on the Hugging Face hub."""

import asyncio
import json
import logging
import os
import re
import time
from collections.abc import Mapping
from hashlib import blake2s
from typing import Any, NamedTuple, cast
from urllib.parse import quote, unquote, urljoin, urlsplit, urlunsplit

from fkat_data.errors import ConfigurationError
from fkat_data.runtime.background import in_loop
from fkat_data.runtime.distributed import RankValue, first_value, known_value
from fkat_data.runtime.machine import required
from fkat_data.storage.attempts import ChangedError, StatusError, TransferError
from fkat_data.streaming.store.client import Body, ListedFile, joined_version, range_header
from fkat_data.streaming.store.web import WebBody, WebSession

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
        """The key that identifies the revision."""
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


_logger = logging.getLogger(__name__)

_COMMIT = re.compile(r"[0-9a-f]{40}")
_RESET = re.compile(r"\bt=(\d+)")
_MISSING = (404, 410)
_RANGE_FAILED = (412, 416)
_MOST_REDIRECTS = 5
#: Where the hub sends a client for a file's bytes is valid for an hour or more.
_REDIRECT_S = 300.0
#: They change without the data.
_NO_DATA = ("README.md", ".gitattributes")


class _HubFile(NamedTuple):
    """The URL of a file's bytes, and their version.

    Attributes:
        url: Their URL.
        is_hub: Whether that is the hub itself, which takes the token.
        version: The hub's name for the content.
        until_s: How long this is valid.
    """

    url: str
    is_hub: bool
    version: str
    until_s: float


class HubOpener:
    """A factory of a store's clients. It pickles with the commit, so that all processes that get the store read the same.

    Args:
        location: The directory.
        options: ``token`` and ``endpoint``, as of ``HfFileSystem``.
    """

    def __init__(self, location: HubLocation, options: Mapping[str, Any]) -> None:
        self.location = location
        self.options: dict[str, Any] = dict(options)
        #: The commit of the revision; "" until the hub was asked.
        self.commit: str = location.revision if _COMMIT.fullmatch(location.revision) else ""

    @property
    def revision(self) -> tuple[str, str]:
        """The revision, and its commit; see ``Store``."""
        return self.location.revision_name, self.commit

    def __call__(self) -> "HubClient":
        """Return a client for this process."""
        return HubClient(self)


class HubClient:
    """A directory of a repository. The hub resolves the revision to a commit once.

    Args:
        opener: The directory, the options, and the commit.

    Raises:
        ConfigurationError: A package is missing.
    """

    def __init__(self, opener: HubOpener) -> None:
        tools, constants = (required(f"huggingface_hub.{name}", "hf") for name in ("utils", "constants"))
        options = opener.options
        endpoint = options.get("endpoint") or os.environ.get("HF_ENDPOINT") or constants.ENDPOINT
        self._endpoint = str(endpoint).rstrip("/")
        token = options.get("token")
        # The hub's library finds it in the environment, or where `hf auth login` put it.
        token = tools.get_token() if token is None or token is True else token
        self._headers: dict[str, str] = tools.build_hf_headers(token=token or False, library_name="fkat_data")
        # A signed URL must stay as it is.
        client_kwargs = {"trust_env": True, "requote_redirect_url": False}
        self._session = WebSession({"encoded": True, "client_kwargs": client_kwargs}, "hf")
        self._opener = opener
        self._location = opener.location
        self._commit_lock = asyncio.Lock()
        self._found_files: dict[tuple[str, str], _HubFile] = {}
        # At one commit, nothing changes.
        self._versions: dict[tuple[str, bool], str] = {}

    def open(self, name: str, start: int, version: str, timeout_s: float, stop: int | None = None) -> Body:
        """Request a file; see ``Client``. The version of a range states the commit, too."""
        until_s = time.monotonic() + timeout_s
        file, commit = in_loop(self._session.loop, self._found(name, version), timeout_s)
        found = file.version if stop is None else f"{file.version}@{commit}"
        # The same content of another commit is the same version.
        found = version if version.partition("@")[0] == file.version else found
        left_s = max(0.0, until_s - time.monotonic())
        return in_loop(self._session.loop, self._opened(name, commit, file, found, start, stop), left_s)

    def version(self, name: str, timeout_s: float, *, is_timed: bool = False) -> str:
        """Look up a file; see ``Client``. Instead of a time, ``is_timed`` adds a digest of the file's directory."""
        known = self._versions.get((name, is_timed))
        if known is None:
            known = in_loop(self._session.loop, self._version(name, is_timed), timeout_s)
            self._versions[name, is_timed] = known
        return known

    def listing(self, prefix: str, timeout_s: float) -> list[ListedFile]:
        """List the files of the commit, 1,000 a request; see ``Client``."""
        folder = self._location.path(prefix.rpartition("/")[0]).strip("/")
        base = self._location.path("")
        found: list[ListedFile] = []
        url = ""
        while True:
            page, url = in_loop(self._session.loop, self._page(folder, url, is_recursive=True), timeout_s)
            for item in page:
                name = str(item["path"]).removeprefix(base)
                if item["type"] == "file" and name.startswith(prefix):
                    found.append(ListedFile(name, int(item["size"]), _oid(item)))
            if not url:
                return found

    def close(self) -> None:
        """Close idle connections; see ``Client``."""
        self._session.close()

    async def _commit(self) -> str:
        async with self._commit_lock:
            if not self._opener.commit:
                url = f"{self._endpoint}{self._location.api_url}/revision/{quote(self._location.revision, safe='')}"
                # The ranks of a job read one commit: the one that any of them resolved first.
                name = self._location.revision_name
                agreed = known_value(name)
                if agreed is None:
                    commit = await self._resolved(url)
                    agreed = first_value(name, commit) or RankValue(0, commit)
                self._opener.commit = agreed.value
                _logger.info("%s is commit %s", name, agreed.value)
            return self._opener.commit

    async def _resolved(self, url: str) -> str:
        """Return the commit that the revision is now."""
        found, _ = await self._json(url)
        commit = str(cast("dict[str, Any]", found).get("sha", "")) if isinstance(found, dict) else ""
        if not _COMMIT.fullmatch(commit):
            raise TransferError(f"the hub names no commit of the revision {self._location.revision!r}")
        return commit

    async def _found(self, name: str, version: str) -> tuple[_HubFile, str]:
        """Return where a file is, at the commit of its version; and that commit."""
        pinned = await self._commit()
        commit = version.partition("@")[2] or pinned
        try:
            return await self._file(name, commit), commit
        except StatusError as error:
            if commit == pinned or error.status not in _MISSING:
                raise
        # The history may have been rewritten. The content is compared.
        return await self._file(name, pinned), pinned

    async def _file(self, name: str, commit: str) -> _HubFile:
        known = self._found_files.get((name, commit))
        if known is not None and known.until_s > time.monotonic():
            return known
        url = self._endpoint + self._location.file_url(name, commit)
        for _ in range(_MOST_REDIRECTS):
            response = await self._session.send("HEAD", url, self._headers, allow_redirects=False)
            response.close()
            if response.status >= 400:
                raise self._error(response)
            headers = response.headers
            target = urljoin(url, headers.get("Location") or url)
            is_hub = _origin(target) == _origin(self._endpoint)
            version = _plain(headers.get("X-Linked-ETag") or headers.get("ETag") or "")
            if not headers.get("Location") or not is_hub or headers.get("X-Linked-ETag"):
                file = _HubFile(target, is_hub, version, time.monotonic() + _REDIRECT_S)
                self._found_files[name, commit] = file
                return file
            # A repository that was renamed.
            url = target
        raise TransferError(f"the hub redirects more than {_MOST_REDIRECTS} times")

    async def _opened(
        self, name: str, commit: str, file: _HubFile, version: str, start: int, stop: int | None
    ) -> WebBody:
        headers = {**(self._headers if file.is_hub else {}), **range_header(start, stop)}
        response = await self._session.send("GET", file.url, headers)
        try:
            if response.status not in (200, 206):
                # A signed URL may have expired: the next attempt asks the hub again.
                self._found_files.pop((name, commit), None)
                if response.status in _RANGE_FAILED:
                    raise ChangedError(f"status {response.status} for bytes from {start:,}")
                if not file.is_hub and 400 <= response.status < 500 and response.status != 429:
                    raise TransferError(f"status {response.status} from {urlsplit(file.url).hostname}")
                raise self._error(response)
            return WebBody(self._session.loop, response, version)
        except BaseException:
            response.close()
            raise

    async def _version(self, name: str, is_timed: bool) -> str:
        file = await self._file(name, await self._commit())
        if not is_timed:
            return file.version
        folder = self._location.path(name).rpartition("/")[0]
        digest, url = blake2s(digest_size=16), ""
        while True:
            page, url = await self._page(folder, url, is_recursive=False)
            for item in page:
                if item["path"] not in _NO_DATA:
                    digest.update(f"{item['path']}\n{_oid(item)}\n".encode())
            if not url:
                return joined_version(file.version, digest.hexdigest())

    async def _page(self, folder: str, url: str, *, is_recursive: bool) -> tuple[list[dict[str, Any]], str]:
        """Return a page of a folder's files, and the URL of the next page; "" if it is the last."""
        if not url:
            path = f"/{quote(folder)}" if folder else ""
            url = f"{self._endpoint}{self._location.api_url}/tree/{await self._commit()}{path}"
            url += f"?recursive={str(is_recursive).lower()}&expand=false"
        try:
            page, following = await self._json(url)
        except StatusError as error:
            if error.status in _MISSING and error.reason.startswith("EntryNotFound"):
                return [], ""
            raise
        if not isinstance(page, list):
            raise TransferError("the hub's list of files is malformed")
        if following:
            # A mirror of the hub may repeat the hub's own address.
            scheme, host = _origin(self._endpoint)
            following = urlunsplit(urlsplit(following)._replace(scheme=scheme, netloc=host))
        return cast("list[dict[str, Any]]", page), following

    async def _json(self, url: str) -> tuple[Any, str]:
        """Return the hub's answer, and the URL of the next page; "" if there is none."""
        response = await self._session.send("GET", url, self._headers)
        try:
            if response.status != 200:
                raise self._error(response)
            return json.loads(await response.read()), str(response.links.get("next", {}).get("url", ""))
        finally:
            response.close()

    def _error(self, response: Any) -> StatusError:
        """Return the error for a response of the hub, in the hub's words."""
        words = [response.headers.get("X-Error-Code", ""), response.headers.get("X-Error-Message", "")]
        reason = ": ".join(word for word in words if word) or response.reason or ""
        if response.status in (401, 403):
            has_token = any(key.lower() == "authorization" for key in self._headers)
            reason += (
                "; the token has no access: accept the conditions on the page, or use another token"
                if has_token
                else "; private, gated or missing: set HF_TOKEN, or run `hf auth login`"
            ) + f" ({self._endpoint}{self._location.page_url})"
        retry_after = response.headers.get("Retry-After", "")
        if not retry_after and response.status == 429:
            found = _RESET.search(response.headers.get("RateLimit", ""))
            retry_after = found[1] if found else ""
        return StatusError(response.status, reason, retry_after)


def _origin(url: str) -> tuple[str, str]:
    parts = urlsplit(url)
    return parts.scheme, parts.netloc


def _plain(etag: str) -> str:
    return etag.removeprefix("W/").strip('"')


def _oid(item: Mapping[str, Any]) -> str:
    """Return the hub's name for the content of a listed file: as the ETag when it is read."""
    return str((item.get("lfs") or item)["oid"])
