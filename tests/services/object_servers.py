"""Small servers of the tests' own: Cloud Storage's XML API, Blob Storage, WebDAV, a host's keys.

Each speaks as much of its protocol as the object-store client uses, ETags included.
"""

from __future__ import annotations

import hashlib
import json
import re
import ssl
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, quote, unquote, urlsplit
from uuid import uuid4
from xml.sax.saxutils import escape


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    data: bytes
    etag: str
    modified: str


@dataclass(slots=True, kw_only=True)
class ObjectServer:
    endpoint: str
    objects: dict[str, StoredObject] = field(default_factory=dict)
    parts: dict[str, dict[str, bytes]] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: ObjectServer

    def log_message(self, *_: object) -> None:
        pass

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        url = urlsplit(self.path)
        self.key = unquote(url.path).lstrip("/")
        self.query = {
            name: values[0] for name, values in parse_qs(url.query, keep_blank_values=True).items()
        }
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.state.requests.append(f"{self.command} {self.path}")
        self.state.headers.append({name.lower(): value for name, value in self.headers.items()})
        return True

    def answer(self, status: int, body: bytes | str = b"", **headers: str) -> None:
        data = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        if "Content_Length" not in headers:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def store(self, key: str, data: bytes) -> StoredObject:
        etag = f'"{hashlib.blake2b(data, digest_size=8).hexdigest()}"'
        stored = StoredObject(data=data, etag=etag, modified=formatdate(usegmt=True))
        self.state.objects[key] = stored
        return stored

    def exists(self) -> bool:
        return self.key in self.state.objects

    def answer_object(self) -> None:
        stored = self.state.objects.get(self.key)
        if stored is None:
            self.answer(404, "<Error><Code>NoSuchKey</Code></Error>")
            return
        described = {"ETag": stored.etag, "Last_Modified": stored.modified}
        wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if self.command == "HEAD" or wanted is None:
            self.answer(200, stored.data, Content_Length=str(len(stored.data)), **described)
            return
        start, size = int(wanted[1]), len(stored.data)
        end = min(int(wanted[2]) + 1, size) if wanted[2] else size
        if start >= len(stored.data):
            self.answer(416, "<Error><Code>InvalidRange</Code></Error>")
            return
        came = f"bytes {start}-{end - 1}/{size}"
        self.answer(206, stored.data[start:end], Content_Range=came, **described)

    def below(self, folder: str) -> list[tuple[str, StoredObject]]:
        return sorted((k, o) for k, o in self.state.objects.items() if k.startswith(folder))

    def do_HEAD(self) -> None:
        self.answer_object()

    def do_DELETE(self) -> None:
        if "uploadId" in self.query:
            found: object = self.state.parts.pop(self.query["uploadId"], None)
        else:
            found = self.state.objects.pop(self.key, None)
        self.answer(404 if found is None else 204)


_JSON_API = "storage/v1/b/"


class GoogleHandler(_Handler):
    page = 1000

    def do_GET(self) -> None:
        if self.key.startswith(_JSON_API):
            self._answer_json(*self.key.removeprefix(_JSON_API).split("/", 2))
        elif "list-type" in self.query:
            self._list()
        else:
            self.answer_object()

    def do_PUT(self) -> None:
        if "uploadId" in self.query:
            self.state.parts[self.query["uploadId"]][self.query["partNumber"]] = self.body
            etag = f'"{hashlib.blake2b(self.body, digest_size=8).hexdigest()}"'
            self.answer(200, ETag=etag)
        elif self.headers.get("x-goog-if-generation-match") == "0" and self.exists():
            self.answer(412)
        else:
            self.answer(200, ETag=self.store(self.key, self.body).etag, x_goog_generation="1")

    def do_POST(self) -> None:
        if "uploads" in self.query:
            upload = uuid4().hex
            self.state.parts[upload] = {}
            self.answer(
                200,
                "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key>"
                f"<UploadId>{upload}</UploadId></InitiateMultipartUploadResult>",
            )
            return
        parts = self.state.parts.pop(self.query["uploadId"])
        numbers = re.findall(r"<PartNumber>(\d+)</PartNumber>", self.body.decode())
        stored = self.store(self.key, b"".join(parts[number] for number in numbers))
        self.answer(
            200,
            "<CompleteMultipartUploadResult><Location>l</Location><Bucket>b</Bucket><Key>k</Key>"
            f"<ETag>{escape(stored.etag)}</ETag></CompleteMultipartUploadResult>",
            x_goog_generation="1",
        )

    def _answer_json(self, bucket: str, _: str, name: str = "") -> None:
        """Answer as the JSON API, which rclone speaks: with an object, or those in one folder."""
        if name:
            stored = self.state.objects.get(f"{bucket}/{name}")
            if stored is None:
                self.answer(404, json.dumps({"error": {"code": 404}}))
            else:
                self.answer(200, json.dumps(self._described(bucket, name, stored)))
            return
        prefix, delimiter = self.query.get("prefix", ""), self.query.get("delimiter")
        items, folders = [], set()
        for key, stored in self.below(f"{bucket}/{prefix}"):
            below, inner, _ = key.removeprefix(f"{bucket}/{prefix}").partition(delimiter or "\0")
            if inner:
                folders.add(f"{prefix}{below}/")
            else:
                items.append(self._described(bucket, f"{prefix}{below}", stored))
        self.answer(200, json.dumps({"items": items, "prefixes": sorted(folders)}))

    def _described(self, bucket: str, name: str, stored: StoredObject) -> dict[str, str]:
        return {
            "bucket": bucket, "name": name, "size": str(len(stored.data)), "generation": "1",
            "updated": "2026-01-02T03:04:05.000Z", "etag": stored.etag,
            "mediaLink": f"{self.state.endpoint}/{quote(bucket)}/{quote(name)}",
        }  # fmt: skip

    def _list(self) -> None:
        bucket = self.key
        after = self.query.get("continuation-token") or self.query.get("start-after", "")
        prefix = self.query.get("prefix", "")
        found = [
            (key.removeprefix(f"{bucket}/"), stored)
            for key, stored in self.below(f"{bucket}/{prefix}")
        ]
        found = [(key, stored) for key, stored in found if key > after]
        page, more = found[: self.page], len(found) > self.page
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(stored.data)}</Size>"
            "<LastModified>2026-01-02T03:04:05.000Z</LastModified>"
            f"<ETag>{escape(stored.etag)}</ETag></Contents>"
            for key, stored in page
        )
        last = escape(page[-1][0]) if more else ""
        token = f"<NextContinuationToken>{last}</NextContinuationToken>"
        self.answer(
            200,
            f"<ListBucketResult><Name>{bucket}</Name><IsTruncated>{str(more).lower()}</IsTruncated>"
            f"{token if more else ''}{rows}</ListBucketResult>",
        )


class AzureHandler(_Handler):
    def do_GET(self) -> None:
        if self.query.get("comp") == "list":
            self._list()
        else:
            self.answer_object()

    def do_PUT(self) -> None:
        if self.query.get("comp") == "block":
            self.state.parts.setdefault(self.key, {})[self.query["blockid"]] = self.body
            self.answer(201)
            return
        if self.headers.get("If-None-Match") == "*" and self.exists():
            self.answer(409)
            return
        data = self.body
        if self.query.get("comp") == "blocklist":
            parts = self.state.parts.pop(self.key)
            names = re.findall(r"<(?:Uncommitted|Latest)>([^<]+)</", data.decode())
            data = b"".join(parts[name] for name in names)
        self.answer(201, ETag=self.store(self.key, data).etag)

    def do_POST(self) -> None:
        boundary = self.headers["Content-Type"].partition("boundary=")[2]
        answers = []
        for number, path in enumerate(re.findall(rb"DELETE (\S+) HTTP", self.body)):
            known = self.state.objects.pop(unquote(path.decode()).lstrip("/"), None)
            status = "202 Accepted" if known else "404 The specified blob does not exist."
            error = "" if known else "x-ms-error-code: BlobNotFound\r\n"
            answers.append(
                f"--{boundary}\r\nContent-Type: application/http\r\nContent-ID: {number}\r\n\r\n"
                f"HTTP/1.1 {status}\r\n{error}x-ms-request-id: 1\r\nx-ms-version: 2023-11-03\r\n"
                "Server: tests\r\n\r\n"
            )
        self.answer(
            202,
            "".join(answers) + f"--{boundary}--\r\n",
            Content_Type=f"multipart/mixed; boundary={boundary}",
        )

    def _list(self) -> None:
        container, prefix = self.key, self.query.get("prefix", "")
        rows = "".join(
            f"<Blob><Name>{escape(key.removeprefix(f'{container}/'))}</Name><Properties>"
            f"<Last-Modified>{stored.modified}</Last-Modified>"
            f"<Content-Length>{len(stored.data)}</Content-Length><Content-Type>x</Content-Type>"
            f"<Etag>{escape(stored.etag)}</Etag></Properties></Blob>"
            for key, stored in self.below(f"{container}/{prefix}")
        )
        self.answer(
            200,
            f"<EnumerationResults><Prefix>{escape(prefix)}</Prefix><Blobs>{rows}</Blobs>"
            "<NextMarker/></EnumerationResults>",
        )


class WebHandler(_Handler):
    def do_GET(self) -> None:
        self.answer_object()

    def do_PUT(self) -> None:
        self.answer(201, ETag=self.store(self.key, self.body).etag)

    def do_PROPFIND(self) -> None:
        found = self.below(f"{self.key}/" if self.key else "")
        if not found:
            self.answer(404)
            return
        rows = "".join(
            f"<D:response><D:href>/{quote(key)}</D:href><D:propstat><D:prop>"
            f"<D:getlastmodified>{stored.modified}</D:getlastmodified>"
            f"<D:getcontentlength>{len(stored.data)}</D:getcontentlength><D:resourcetype/>"
            f"<D:getetag>{escape(stored.etag)}</D:getetag></D:prop>"
            "<D:status>HTTP/1.1 200 OK</D:status></D:propstat></D:response>"
            for key, stored in found
        )
        self.answer(207, f'<D:multistatus xmlns:D="DAV:">{rows}</D:multistatus>')


class PlainWebHandler(WebHandler):
    """A web server without listings, whose URLs may be signed for GET alone."""

    refusal = 0  # the status of its answer to HEAD; 0: it describes objects

    def do_HEAD(self) -> None:
        if self.refusal:
            self.answer(self.refusal)
        else:
            super().do_HEAD()

    def do_GET(self) -> None:
        if self.key.endswith("denied"):
            self.answer(403)
        else:
            super().do_GET()

    def do_PROPFIND(self) -> None:
        self.answer(501)


class CredentialsHandler(_Handler):
    """What an EC2 host (its metadata service, version 2) and a pod's agent offer: keys."""

    folder = "latest/meta-data/iam/security-credentials/"
    keys = json.dumps(
        {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "LastUpdated": "2026-01-01T00:00:00Z",
            "Expiration": "2099-01-01T00:00:00Z",
            "AccessKeyId": "HOSTKEY",
            "SecretAccessKey": "host-secret",
            "Token": "host-session",
        }
    )

    def do_PUT(self) -> None:
        self.answer(200 if self.key == "latest/api/token" else 404, "metadata-token")

    def do_GET(self) -> None:
        wanted = {
            "pod": ("authorization", "pod-token", self.keys),
            self.folder: ("x-aws-ec2-metadata-token", "metadata-token", "the-role"),
            f"{self.folder}the-role": ("x-aws-ec2-metadata-token", "metadata-token", self.keys),
        }
        header, token, text = wanted.get(self.key, ("", "", ""))
        if not header:
            self.answer(404)
        elif self.headers.get(header) != token:
            self.answer(401)
        else:
            self.answer(200, text)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        # A client that gives up a request closes its connection; that is no news.
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


@contextmanager
def object_server(
    handler: type[_Handler], certificate: tuple[str, str] | None = None
) -> Iterator[ObjectServer]:
    """Run a server; with a certificate and its key, for localhost, it speaks https."""
    with _Server(("127.0.0.1", 0), handler) as server:
        state = ObjectServer(endpoint=f"http://127.0.0.1:{server.server_port}")
        if certificate is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(*certificate)
            server.socket = context.wrap_socket(server.socket, server_side=True)
            state.endpoint = f"https://localhost:{server.server_port}"
        server.RequestHandlerClass = type("Handler", (handler,), {"state": state})
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        try:
            yield state
        finally:
            server.shutdown()
            thread.join()
