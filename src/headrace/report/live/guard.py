"""What stands before every request of the live page: who may ask, and what browsers may do with it.

- Host: a page of another site that has its name lead here (DNS rebinding) is refused. A number is
  nobody's name, so addresses are taken where the server listens beyond this machine.
- Origin: only the page itself may ask, by any method.
- Token: given in the URL, it moves into a cookie that browsers send for this site only. Other users
  of the machine have none, and images or forms of other sites send none.
- Headers: nothing is loaded from elsewhere, nothing is framed, cached or guessed.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from dataclasses import dataclass
from html import escape
from urllib.parse import SplitResult, urlencode, urlsplit

from starlette.datastructures import Headers, MutableHeaders, QueryParams
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
        names: The names, in lower case, that it answers to, beside those of a loopback address.
        local: Whether it listens on this machine alone; else it answers to any address.
    """

    token: str
    names: frozenset[str]
    local: bool

    @property
    def cookie(self) -> str:
        """The name of the cookie that has the token, by which servers of one machine differ.

        Their ports may be equal: those of several hosts that are forwarded to this one.
        """
        return f"headrace_token_{hashlib.sha256(self.token.encode()).hexdigest()[:12]}"


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
        if not self._answers_to(_parsed(f"//{host}").hostname or ""):
            return _refused(
                f"This server does not answer to {host!r}. If that is its name, start it with "
                "--allow-host NAME."
            )
        origin = headers.get("origin")
        if origin is not None and _parsed(origin).netloc != host:
            return _refused(f"The page {origin!r} may not ask this server.")
        changes = scope["method"] not in _SAFE_METHODS
        if changes and (origin is None or headers.get(_REQUEST_HEADER) is None):
            return _refused("Only Headrace's own page may change a run.")
        return self._without_token(scope, headers)

    def _answers_to(self, name: str) -> bool:
        if name in self._access.names or name == "localhost":
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or not self._access.local

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
        answer = HTMLResponse(moving_page(f"{path}?{rest}" if rest else path))
        answer.set_cookie(
            self._access.cookie, self._access.token, httponly=True, samesite="strict", path="/"
        )
        return answer


def moving_page(url: str) -> str:
    """Return a page that leads to a URL at once.

    It stands in place of a redirect: to one that another site began, browsers send no strict
    cookie. As a file it has a browser open a URL that is not to be seen among its arguments.
    """
    shown = escape(url)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><title>Headrace</title>\n'
        f'<meta http-equiv="refresh" content="0; url={shown}"></head>\n'
        f'<body><a href="{shown}">Headrace</a></body></html>\n'
    )


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
