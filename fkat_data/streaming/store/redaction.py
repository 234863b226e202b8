"""Remove secrets from messages."""

import re
from collections.abc import Mapping
from typing import Any, cast
from urllib.parse import unquote, urlsplit

_HIDDEN = "***"
_LONGEST_MESSAGE = 500
#: A shorter text would match words that are no secrets.
_SHORTEST_SECRET = 4
#: Settings that a message may show; any other text might be a secret.
_NO_SECRETS = {"endpoint_url", "region_name", "anon", "default_block_size", "project", "account_name", "repo_type"}
_USER_OF_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://)[^/\s@'\"?#]*@")
_QUERY_OF_URL = re.compile(r"([a-zA-Z][a-zA-Z0-9+.-]*://[^\s'\"?#]*)\?[^\s'\"#>)]*")
_SIGNED = re.compile(
    r"(?i)\b(x-(?:amz|goog)-(?:signature|credential|security-token)|signature|sig|token|secret|password|authorization|"
    r"(?:aws_?)?(?:access_?key_?id|secret_?access_?key))([\"']?\s*[=:]\s*[\"']?)(?:(?:bearer|basic)\s+)?[^\s&,\"'<>]+"
)


class Redaction:
    """Hides the secrets of a store's URL and options.

    Args:
        url: The URL, which may carry a user's name and password, or a signature in its query.
        options: The options of its file system.
    """

    def __init__(self, url: str, options: Mapping[str, Any]) -> None:
        found = set(_texts(options))
        if "://" in url:
            parts = urlsplit(url)
            found |= {parts.query, unquote(parts.query)}
            user = parts.netloc.rpartition("@")[0]
            found |= {user, unquote(user), *user.split(":"), *(unquote(part) for part in user.split(":"))}
        self._secrets = sorted((text for text in found if len(text) >= _SHORTEST_SECRET), key=len, reverse=True)

    def url(self, url: str) -> str:
        """Return a URL without its user and its query."""
        return _USER_OF_URL.sub(rf"\1{_HIDDEN}@", _QUERY_OF_URL.sub(rf"\1?{_HIDDEN}", url))

    def text(self, text: str) -> str:
        """Return a message without secrets, on one line of at most 500 characters."""
        text = self.url(text)
        for secret in self._secrets:
            text = text.replace(secret, _HIDDEN)
        text = " ".join(_SIGNED.sub(rf"\1\2{_HIDDEN}", text).split())
        return text if len(text) <= _LONGEST_MESSAGE else text[:_LONGEST_MESSAGE] + "…"


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, bytes):
        return [value.decode(errors="replace")]
    if isinstance(value, Mapping):
        items = cast("Mapping[object, object]", value).items()
        return [text for key, item in items if key not in _NO_SECRETS for text in _texts(item)]
    if isinstance(value, (list, tuple)):
        return [text for item in cast("list[object]", value) for text in _texts(item)]
    # Objects such as aiohttp.BasicAuth are tuples; others do not show their contents in messages.
    return []
