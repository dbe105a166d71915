"""Whatever a secret is made of, it is hidden in each of its places, once and for all."""

from __future__ import annotations

import json
import re
from urllib.parse import quote, unquote

from hypothesis import given
from hypothesis import strategies as st

from headrace.records.redaction import HIDDEN, redact, redact_text, shown_value

ALPHABET = "abcXYZ019@/:#?%+=~!.-_$&;,"
SECRETS = st.text(ALPHABET, min_size=8, max_size=24).map(lambda text: f"s3{text}T0")
NAMES = st.sampled_from(["token", "--api-key", "DB_PASSWORD", "client.secret", "x.hfToken"])


@given(SECRETS, st.sampled_from(["https", "s3", "postgresql+psycopg2"]), st.booleans())
def test_users_of_urls(secret: str, scheme: str, has_user: bool):
    quoted = re.sub("[/?#]", "_", secret)  # as in a URL they must be
    url = f"{scheme}://{'user:' * has_user}{quoted}@host/path"
    assert redact_text(url) == f"{scheme}://host/path"
    assert redact([f"--data={url}"]) == (f"--data={scheme}://host/path",)


@given(SECRETS)
def test_passwords_with_slashes(secret: str):
    assert secret not in redact_text(f"https://user:{secret}@host/path")


@given(SECRETS, NAMES, st.integers(1, 3))
def test_quoted_for_a_url(secret: str, name: str, times: int):
    text = f"x {name}={secret}"
    for _ in range(times):
        text = quote(text, safe="/ ")
    shown = redact_text(text)
    for _ in range(times):
        shown = unquote(shown)
    assert secret not in shown


@given(SECRETS, NAMES)
def test_values_of_names(secret: str, name: str):
    assert redact([f"{name}={secret}"]) == (f"{name}={HIDDEN}",)
    assert redact([f"--set={name}={secret}"]) == (f"--set={name}={HIDDEN}",)
    assert secret not in redact_text(json.dumps({"a": {name: secret}, "b": 1}))
    assert json.loads(redact_text(json.dumps({"a": {name: secret}}))) == {"a": {name: HIDDEN}}


@given(st.text(ALPHABET + " \"'\\{}[]()<\n", max_size=12), NAMES)
def test_values_that_messages_quote(rest: str, name: str):
    secret = f"s3cret {rest} T0K"
    assert shown_value(secret, name) == repr(HIDDEN)
    assert shown_value({name: secret, "lr": 1}) == repr({name: HIDDEN, "lr": 1})
    for value in (
        f"{name}={secret}", [secret], {"a": [{name: (secret, "b")}]}, json.dumps({name: secret}),
        [f"{name}={secret}", "--lr=1"], [{"name": name, "value": secret}], {"b": {name: [secret]}},
    ):  # fmt: skip
        shown = shown_value(value, name if value == [secret] else "")
        assert "s3cret" not in shown
        assert "T0K" not in shown


@given(
    st.recursive(st.integers() | st.sampled_from(["a b", "it's", "x=1"]), st.lists, max_leaves=4)
)
def test_other_values_are_quoted_as_they_are(value: object):
    assert shown_value(value, "epochs") == repr(value)


@given(st.text(ALPHABET + " \"'\\{}[]()<", min_size=1, max_size=12), NAMES)
def test_values_in_json_and_in_json_within_it(rest: str, name: str):
    secret = f"s3cret{rest}T0K"
    once = json.dumps({"a": {name: secret}, "b": [1, {name: [secret, {"c": secret}]}]})
    for text in (once, json.dumps({"request": once}), json.dumps([json.dumps({"request": once})])):
        shown = redact_text(text)
        assert "s3cret" not in shown
        assert "T0K" not in shown
        json.loads(shown)


@given(st.lists(st.text(ALPHABET + " \"'{}-=:", max_size=30), max_size=4))
def test_what_is_redacted_stays_as_it_is(words: list[str]):
    once = redact(words)
    assert len(once) == len(words)
    assert redact(once) == once


@given(st.text())
def test_any_text_can_be_redacted(text: str):
    assert isinstance(redact_text(text), str)
    assert isinstance(redact_text(text, is_code=True), str)
