"""How a host and the head of a job prove themselves to each other, and protect what they send then.

Where both were given the token, each proves that it has it by an HMAC-SHA-256 over what both sides
have sent: names, a nonce of either side, and the address of the head's Ray node. The head proves
itself first, so a host connects to no address that the head has not named, and sends nothing to
another program. Proofs name the side that makes them, so that none can be sent back.

Where the head made the token, the two agree on a secret by X25519 (RFC 7748), by which it travels
encrypted; who only listens does not learn it. As nothing is known beforehand that would tell the
head from a stranger, a stranger who can also alter traffic between them could still take its place.
"""

from __future__ import annotations

import hmac
import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

JOIN_PROTOCOL = 2
"""The version of the messages; 1 sent a token that the head had made unencrypted."""
_NONCE_BYTES = 32
_TOKEN_NONCE = bytes(12)  # the key is used once

Side = Literal["head", "host"]


def new_nonce() -> str:
    """Return a new nonce, in hexadecimal digits."""
    return secrets.token_hex(_NONCE_BYTES)


class AgreedSecret:
    """One side's part of a secret that two sides agree on; `public` goes to the other side."""

    def __init__(self) -> None:
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw().hex()

    def with_other(self, public: str) -> bytes:
        """Return the secret, by what the other side has sent; raises ValueError."""
        from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey

        return self._private.exchange(X25519PublicKey.from_public_bytes(bytes.fromhex(public)))


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinHandshake:
    """What both sides have sent, and the secret that both have; equal on both sides."""

    secret: bytes = field(repr=False)  # the token, or what was agreed on
    host: str
    group: str
    host_nonce: str
    head_nonce: str
    ray_address: str
    host_public: str = ""  # of the agreed secret; "": both were given the token
    head_public: str = ""

    def proof(self, side: Side) -> str:
        """Return a side's proof that it has the secret, in hexadecimal digits."""
        return self._derive(f"proof of the {side}").hex()

    def proves(self, side: Side, proof: object) -> bool:
        """Whether that is the side's proof."""
        given = str(proof).encode("utf-8", "replace")
        return hmac.compare_digest(given, self.proof(side).encode())

    def message_codes(self, sender: Side) -> MessageCodes:
        """Return the codes of a side's later messages."""
        return MessageCodes(self._derive(f"messages of the {sender}"))

    def encrypt_token(self, token: str) -> str:
        """Return the token as it travels; only with an agreed secret."""
        encrypted: bytes = self._cipher().encrypt(_TOKEN_NONCE, token.encode(), None)
        return encrypted.hex()

    def decrypt_token(self, encrypted: object) -> str | None:
        """Return the token from what has arrived; None where that is none."""
        from cryptography.exceptions import InvalidTag

        try:
            content = bytes.fromhex(str(encrypted))
            token: bytes = self._cipher().decrypt(_TOKEN_NONCE, content, None)
            return token.decode()
        except (InvalidTag, ValueError):
            return None

    def _cipher(self) -> Any:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

        return ChaCha20Poly1305(self._derive("encryption of the token"))

    def _derive(self, purpose: str) -> bytes:
        parts = [
            f"headrace join {JOIN_PROTOCOL}", purpose, self.host, self.group, self.host_nonce,
            self.host_public, self.head_nonce, self.head_public, self.ray_address,
        ]  # fmt: skip
        return hmac.digest(self.secret, json.dumps(parts).encode(), "sha256")


class MessageCodes:
    """The codes of one side's messages, in their order."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def next_code(self, message: Mapping[str, object]) -> str:
        """Return the code of the next message."""
        self._number += 1
        content = json.dumps([self._number, message], sort_keys=True)
        return hmac.digest(self._key, content.encode(), "sha256").hex()
