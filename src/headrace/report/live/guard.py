"""What stands before every request of the live page: who may ask, and what browsers may do with it.

- Host: a page of another site that has its name lead here (DNS rebinding) is refused.
- Origin: only the page itself may ask, by any method.
- Token: given in the URL, it moves into a cookie that browsers send for this site only. Other users
  of the machine have none, and images or forms of other sites send none.
- Headers: nothing is loaded from elsewhere, nothing is framed, cached or guessed.
"""

from __future__ import annotations

import hmac
from dataclasses import dataclass
from html import escape
from urllib.parse import SplitResult, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_LOCAL_NAMES = frozenset({"127.0.0.1", "localhost", "::1"})
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_REQUEST_HEADER = "x-headrace"
"""Changes need it: a form of another site cannot send it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Who may ask.

    Attributes:
        token: The secret that a browser must have.
        address: Where the server listens: it answers to this name, too.
        port: Its port, by which its cookie differs from that of another server of this machine.
        local: Whether it listens on this machine alone.
    """

    token: str
    address: str
    port: int
    local: bool

    @property
    def cookie(self) -> str:
        """The name of the cookie that has the token."""
        return f"headrace_token_{self.port}"


class Guard:
    """An ASGI application around another one; see the module."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in _HEADERS.items():
                    headers[name] = value
            await send(message)

        refusal = self._refusal(scope)
        await (refusal or self._app)(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Response | None:
        """Return the answer to a request that is not handed on; None for others."""
        headers = Headers(scope=scope)
        host = headers.get("host", "")
        names = {*_LOCAL_NAMES, self._access.address}
        if self._access.local and _parsed(f"//{host}").hostname not in names:
            return _refused(f"This server answers to 127.0.0.1 and localhost, not to {host!r}.")
        origin = headers.get("origin")
        if origin is not None and _parsed(origin).netloc != host:
            return _refused(f"The page {origin!r} may not ask this server.")
        changes = scope["method"] not in _SAFE_METHODS
        if changes and (origin is None or headers.get(_REQUEST_HEADER) is None):
            return _refused("Only Headrace's own page may change a run.")
        return self._without_token(scope, headers)

    def _without_token(self, scope: Scope, headers: Headers) -> Response | None:
        known = cookie_parser(headers.get("cookie", "")).get(self._access.cookie, "")
        query = QueryParams(scope["query_string"])
        given = query.get("token")
        if given is None and _same(known, self._access.token):
            return None
        if given is None or not _same(given, self._access.token):
            what = "is missing" if not (given or known) else "is wrong"
            printed = "open the URL that `headrace report --live` printed"
            return _refused(f"The token {what}: {printed}.")
        rest = urlencode([(name, value) for name, value in query.multi_items() if name != "token"])
        path = scope["raw_path"].decode("ascii")
        answer = HTMLResponse(_MOVED.format(url=escape(f"{path}?{rest}" if rest else path)))
        answer.set_cookie(
            self._access.cookie, self._access.token, httponly=True, samesite="strict", path="/"
        )
        return answer


# A page in place of a redirect: to one that another site began, browsers send no strict cookie.
_MOVED = """<!DOCTYPE html>
<html lang="en"><head><title>Headrace</title>
<meta http-equiv="refresh" content="0; url={url}"></head>
<body><a href="{url}">Headrace</a></body></html>
"""


def _same(one: str, other: str) -> bool:
    return hmac.compare_digest(one.encode(), other.encode())


def _parsed(url: str) -> SplitResult:
    try:
        found = urlsplit(url)
        found.hostname  # noqa: B018 - raises for half an IPv6 address
    except ValueError:
        return urlsplit("")
    return found


def _refused(why: str) -> Response:
    return PlainTextResponse(f"{why}\n", status_code=403)
