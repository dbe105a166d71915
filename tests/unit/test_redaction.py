"""Secrets in every place of a command line, a variable, a URL or a text, and what is none."""

from __future__ import annotations

import json
from pathlib import Path
from urllib.parse import quote

import pytest

from headrace.records.redaction import (
    HIDDEN,
    hide_secrets,
    hide_variables,
    is_secret,
    redact,
    redact_text,
    redact_traceback,
)

CANARY = "c4n4rY/x+9d8f7a6b5c4d3e2f1a0b9c8d7"  # as keys look, and no known form of one
PLAIN = "sesame"


NAMES = """
    AWS_SECRET_ACCESS_KEY aws_access_key_id HF_TOKEN hf-token hfToken HFTOKEN my_api_key apiKey
    OPENAI_API_KEY_2 --password db.PASSWORD passwd PGPASSWORD user_pwd passphrase client_secret
    X-Amz-Signature sig AccountKey SharedAccessKey AZURE_STORAGE_KEY Authorization cookie
    proxy-authorization SENTRY_DSN GOOGLE_APPLICATION_CREDENTIALS X-Auth-Token ssh_private_key
    --pass DB_PASS smtp.pass PGPASS --pw user-pw aws_creds OTP SLACK_WEBHOOK MASTER_KEY deploy-key
""".split()  # noqa: SIM905 - names, as a paragraph


@pytest.mark.parametrize("name", NAMES)
def test_names_of_secrets_in_any_spelling(name: str):
    assert is_secret(name)
    assert is_secret(name, PLAIN)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("--tokenizer", "gpt2"), ("max_tokens", "512"), ("tokens_per_batch", "1e6"),
        ("--pad-token", "<pad>"), ("mask_token", "[MASK]"), ("monkey", "3"), ("--keyboard", "1"),
        ("--image-key", "jpg"), ("sort_key", "label"), ("--key-frames", "16"), ("author", "Ann"),
        ("sigma", "0.5"), ("--significant", "3"), ("PWD", "/home/ann"), ("passes", "3"),
        ("compass", "n"), ("--pass", "3"), ("first_pass", "adam"), ("bypass", "x"), ("pw", "16"),
        ("--use-pass", "true"), ("OLDPWD", "/home/ann"), ("assignment", "x"), ("design", "x"),
        ("--detokenize", "yes"),
    ],
)  # fmt: skip
def test_names_of_other_things(name: str, value: str):
    assert not is_secret(name, value)
    assert redact([f"{name}={value}"]) == (f"{name}={value}",)


def test_a_name_that_may_be_a_secret_s_is_judged_by_the_value():
    assert redact([f"--wandb-key={CANARY}", "--image-key=jpg"]) == (
        "--wandb-key=***", "--image-key=jpg",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        (["--api-key", "abc", "t.py"], ("--api-key", "***", "t.py")),
        (["--hf_token=abc"], ("--hf_token=***",)),
        (["WANDB_API_KEY=abc"], ("WANDB_API_KEY=***",)),
        (["--environment", "HF_TOKEN=a b,c"], ("--environment", "HF_TOKEN=***")),
        (["--environment=HF_TOKEN=abc"], ("--environment=HF_TOKEN=***",)),
        (["--data=https://u:p@h/a?X-Sig=1"], ("--data=https://h/a",)),
        (["s3://b/k?versionId=1", "--lr=0.1"], ("s3://b/k", "--lr=0.1")),
        (["--token", "--next", "x"], ("--token", "--next", "x")),
        (["--max-tokens", "512", "--tokenizer", "t"], ("--max-tokens", "512", "--tokenizer", "t")),
        (["--monkey", "3", "--keyboard=1"], ("--monkey", "3", "--keyboard=1")),
        (["+wandb.api_key=abc", "model.lr=1"], ("+wandb.api_key=***", "model.lr=1")),
        (["--api-keys", "a", "b", "--lr", "1"], ("--api-keys", "***", "***", "--lr", "1")),
        (["--password", "-a!b", "x"], ("--password", "***", "x")),
        (["--password", f"-{CANARY}"], ("--password", "***")),
        (["Driver={x};UID=a;PWD={abc}"], ("Driver={x};UID=a;PWD=***",)),
    ],
)
def test_no_secret_of_a_command_line_is_kept(typed, kept):
    assert redact(typed) == kept


@pytest.mark.parametrize(
    "option",
    ["--auth", "--basic-auth", "--proxy_auth", "--httpAuth", "--AUTH", "--authorization",
     "--credential", "--credentials", "--db.creds"],
)  # fmt: skip
def test_all_values_of_an_option_for_a_user_and_a_password_are_hidden(option: str):
    words = [option, "alice", "s3cr3t-Pa55", "--lr", "1", "data/"]
    assert redact(words) == (option, HIDDEN, HIDDEN, "--lr", "1", "data/")
    assert redact([option, "alice", "-s3cr3t!", "data/"]) == (option, *[HIDDEN] * 3)
    for program in ("t.py", "bash train.sh", "./launch.sh", "push", "sudo"):
        shown = f"{program} {option} *** *** --lr 1 data/"
        assert redact_text(f"{program} {' '.join(words)}") == shown
        assert redact(["bash", "-c", f"{program} {' '.join(words)}"])[2] == shown
    once = json.dumps([option, "alice", "s3cr3t 'Pa55"])
    for text in (once, json.dumps({"request": once}), f"t.py {option} 'alice' 's3cr3t Pa55'"):
        assert "s3cr3t" not in redact_text(text)
        assert "Pa55" not in redact_text(text)


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("t.py -login alice s3cr3t --lr 1", "t.py -login alice *** --lr 1"),
        ("bash t.sh --LOGIN alice s3cr3t", "bash t.sh --LOGIN alice ***"),
        ("t.py --login alice s3cr3t --lr 1", "t.py --login alice *** --lr 1"),
        ("t.py --db-login alice s3cr3t", "t.py --db-login alice ***"),
        ("t.py --login alice:s3cr3t --lr 1", "t.py --login alice:*** --lr 1"),
        ("t.py --login alice", "t.py --login alice"),
        ("bash --login start.sh data/", "bash --login start.sh data/"),
        ("/bin/bash --login -c env", "/bin/bash --login -c env"),
        ("t.py --token s3cr3t data/", "t.py --token *** data/"),
        ("t.py --password s3cr3t a b", "t.py --password *** a b"),
        ("t.py --auth --lr 1", "t.py --auth --lr 1"),
        ("t.py --author alice smith", "t.py --author alice smith"),
    ],
)
def test_what_is_kept_beside_a_password(typed: str, kept: str):
    assert list(redact(typed.split())) == kept.split()
    assert redact_text(typed) == kept


@pytest.mark.parametrize("before", ['ssh h "', "cd a;", "(", "sudo "])
def test_a_login_shell_in_a_text_has_no_user(before: str):
    text = f"{before}bash --login run.sh data/"
    assert redact_text(text) == text


@pytest.mark.parametrize(
    "text",
    [
        '{{"password": "{0}", "lr": 1}}',
        "{{'db': {{'passwd': '{0}'}}}}",
        '{{\\"api_key\\": \\"{0}\\"}}',
        "api_key: {0}",
        "a=1,password={0},b=2",
        "bash -c 'export HF_TOKEN={0}; python t.py'",
        "bash -c 'python t.py --token {0} --lr 1'",
        'python t.py --password "{0} and more {0}" --lr 1',
        "postgresql://user:{0}@db.example.com:5432/x",
        "https://{0}@github.com/a/b.git",
        "https://user:p@{0}@host/x",
        "https://user:{0}/{0}@host/x",
        "https://user:{0}#{0}?@host/x",
        "http://user:{0}@[::1]:8080/x",
        "s3://b/a,s3://key:{0}@b/c",
        "https://h/x?X-Amz-Signature={0}&X-Amz-Date=1",
        "https://h/x?next=https://u:{0}@h/y",
        'fetched "https://h/x?sig={0}" twice',
        "https://h/x#access_token={0}",
        "DefaultEndpointsProtocol=https;AccountName=x;AccountKey={0};EndpointSuffix=y",
        "sv=2024-01-01&sig={0}",
        "cache user:{0}@cache.example.com:6379",
        "Authorization: Bearer {0}",
        "Authorization: Basic {0}",
        "curl -H 'Authorization: {0}' https://h",
        "curl -H 'X-Api-Key: {0}' https://h",
        "Cookie: a={0}; b={0}",
        '{{"headers": {{"Authorization": "Bearer {0}"}}}}',
        '{{"api_keys": ["{0}", "{0}2"], "lr": 1}}',
        "{{'tokens': ['{0}', '{0}2']}}",
        '{{"auth": {{"password": {{"value": "{0}", "more": ["{0}"]}}}}}}',
        r'{{"password": "a\"{0}"}}',
        r"{{'password': 'a\'{0}'}}",
        r"{{\"password\": \"a\\\"{0}\"}}",
        'password="{0} and {0}',
        "a=1 password=ab,{0} b=2",
        '[{{"name": "HF_TOKEN", "value": "{0}"}}]',
        '<add key="password" value="{0}"/>',
        "<db><password>{0}</password></db>",
        "Driver=x;UID=a;PWD={0};",
        "os.environ.setdefault('API_KEY', '{0}')",
        "Command '['login', '--token', '{0}']' returned non-zero exit status 1.",
        '["--lr","1","--api_key","{0}"]',
        'authorization: Digest username="a", response="{0}"',
        "x-functions-key: {0}",
        r"https:\/\/user:{0}@host\/x",
        "user:{0}@cache:6379",
        "user:{0}@db/x",
        "https://hooks.slack.com/services/T0/B0/{0}",
        "https%3A%2F%2Fuser%3A{0}%40host%2Fx",
        "aws_secret_access_key%3D{0}&lr=1",
        "https://h/x%3Fnext%3Dhttps%253A%252F%252Fh%252F%253Ftoken%253D{0}",
        "login.html%3fpassword%3d{0}",
        "curl -u user:{0} https://h",
        "curl --proxy-user=me:{0} https://h",
        "Command '['curl', '--user', 'me:{0}', 'https://h']' failed",
        "machine h login me password {0}",
        "headers: [('Accept', '*'), ('x-auth-token', '{0}')]",
        "[(b'authorization', b'Token {0}')]",
        "AUTHORIZATION=ApiKey {0}",
        "connect(auth=HTTPBasicAuth('me', '{0}'))",
        "kennwort: {0}",
        "mot_de_passe={0}",
    ],
)
def test_a_secret_is_hidden_wherever_it_stands(text: str):
    for secret in (PLAIN, CANARY.replace("/", "_")):
        written = text.format(secret)
        assert secret not in redact_text(written), written
        assert secret not in redact(["--config", written])[1]
        assert secret not in redact([f"--config={written}"])[0]
        assert secret not in json.dumps(hide_secrets({"a": [{"b": written}]}))


HOOK_KEYS = [
    "5f3a9c0e7b2d4f6a8c1e0d9b7a5f3c2e", "0b9d6c1e-4f3a-4b7d-9c2e-8a1f5d3b7c6e",
    "xk3tqpb8sjd9urw5e7zmofc1ha", "MTIz_n4nP2-qWxY7zAbCdEfGh8i",
]  # fmt: skip


def assert_hidden(secret: str, url: str) -> None:
    for text in (url, f"POST {url}: 404", f"a={url},b=1", quote(url, safe="")):
        assert secret not in redact_text(text), text
        assert secret not in redact(["--notify", text])[1]
        assert redact_text(redact_text(text)) == redact_text(text)
    assert secret not in json.dumps(hide_secrets({"a": [{"b": url}]}))


@pytest.mark.parametrize(
    "url",
    [
        "https://acme.webhook.office.com/webhookb2/a@b/IncomingWebhook/{0}/c",
        "https://hooks.slack.com/workflows/T0/A0/1/{0}",
        "https://hooks.zapier.com/hooks/catch/1/{0}/",
        "https://hook.eu1.make.com/{0}",
        "http://webhook:8080/{0}",
        "https://me:pw@hooks.h.org:8443/x/{0}?y=1",
        "https://hc-ping.com/{0}/start",
        "https://maker.ifttt.com/trigger/x/with/key/{0}",
        "https://api.telegram.org/bot1:{0}/getMe",
        "https://api.telegram.org/file/bot1:{0}/photos/a.jpg",
        "https://p.logic.azure.com:443/workflows/w/triggers/manual/paths/invoke?sp=a&sig={0}",
        "https://chat.googleapis.com/v1/spaces/X/messages?key={0}&token={0}",
    ],
)
def test_whatever_a_hook_s_own_host_is_asked_is_hidden(url: str):
    for secret in (PLAIN, *HOOK_KEYS):
        assert_hidden(secret, url.format(secret))


@pytest.mark.parametrize(
    "url",
    [
        "https://outlook.office.com/webhook/a@b/IncomingWebhook/{0}/c",
        "https://discord.com/api/v10/webhooks/123/{0}/slack",
        "https://chat.h.org/hooks/{0}",
        "https://chat.h.org/hooks/1/{0}",
        "https://open.feishu.cn/open-apis/bot/v2/hook/{0}",
        "https://api.netlify.com/build_hooks/{0}",
        "https://events.pagerduty.com/integration/{0}/enqueue",
        "https://alerts.h.org/integrations/generic/1/alert/{0}/team",
        "https://checks.h.org/ping/{0}",
        "https://h.org/v1/token/{0}/x",
        "https://h.org/API_KEY/{0}/data.json",
        "https://[::1]:8080/hooks/{0}",
        "https://bots.h.org/bot123456789:{0}/sendMessage",
    ],
)
def test_keys_in_the_path_of_a_hook_are_hidden(url: str):
    for secret in HOOK_KEYS:
        assert_hidden(secret, url.format(secret))


@pytest.mark.parametrize(
    "url",
    [
        "https://dl.cloudsmith.io/{0}/org/repo/python/simple/",
        "https://dl.cloudsmith.io/{0}/org/repo/python/tinyhr-1.0-py3-none-any.whl",
        "https://pypi.fury.io/{0}/me/tinyhr/",
        "https://packagecloud.io/priv/{0}/me/repo/pypi/simple",
        "https://conda.anaconda.org/t/{0}/me/noarch/repodata.json",
        "http://index.h.org:8080/{0}/simple/tinyhr/",
    ],
)
def test_keys_in_the_path_of_a_package_index_are_hidden(url: str):
    for secret in HOOK_KEYS:
        assert_hidden(secret, url.format(secret))


def test_the_rest_of_a_hook_s_url_stays():
    (key, *_) = HOOK_KEYS
    for text, shown in (
        (f"https://chat.h.org/hooks/{key}", "https://chat.h.org/hooks/***"),
        (f"https://h.org/key/{key}/a.json, b", "https://h.org/key/***/a.json, b"),
        (rf'"https:\/\/h.org\/hooks\/{key}"', r'"https:\/\/h.org\/hooks\/***"'),
        ("https://hooks.zapier.com/hooks/catch/1/ab/, b", "https://hooks.zapier.com/***, b"),
    ):
        assert redact_text(text) == shown


@pytest.mark.parametrize(
    "secret",
    [
        "AKIAIOSFODNN7EXAMPLE", "hf_" + "aB3" * 10, "ghp_" + "aB3" * 12, "github_pat_" + "aB3" * 10,
        "sk-proj-" + "aB3" * 10, "xoxb-1234567890-abc", "AIza" + "aB3-_" * 7, "glpat-" + "aB3" * 8,
        "nvapi-" + "aB3" * 16, "gsk_" + "aB3" * 16, "dapi" + "a1b2" * 8, "sk_live_" + "aB3" * 8,
        "ABIAIOSFODNN7EXAMPLE", "pypi-" + "aB3" * 20, "SG." + "aB3" * 7 + "." + "cD4" * 14,
        "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0", "-----BEGIN RSA PRIVATE KEY-----\nMIIE\n",
    ],
)  # fmt: skip
def test_a_key_of_a_known_form_is_hidden_under_any_name(secret: str):
    for text in (secret, f"--note={secret}", f"use {secret} here", json.dumps({"note": secret})):
        assert secret.strip() not in redact((text,))[0]
        assert "MIIE" not in redact((text,))[0]


@pytest.mark.parametrize(
    "text",
    [
        "https://host/@user/a@2x.png", "s3://bucket/a@b/c", "http://host:8080/a@b", "git@h.org:a/b",
        "a@b.org", "mailto:a@b.org", "lr=0.1,sigma=3", "--seed 3 --tokenizer gpt2", "x: y", "12:30",
        "image:tag@sha256:0011", "task-of-something-very-long-1", "C:/x", "gs://b/k#1.jpg",
        '{"lr": 0.1, "max_tokens": 5, "names": ["a", "b"]}', "key=label", "for token in tokens:",
        '{"tokens": [1, 2], "special_tokens": ["<pad>", "[CLS]"]}', "nginx:1.2@sha256:0011",
        "docker run -u 1000:1000 x", "https://h/a%20b/c%40d", "100%25 of%3A x",
        "python -u train.py",
        "('token', 3)", "loss(token_ids, labels)", "%d%b%Y",
        "pass: 3", "x-axis: loss", "--x-key=loss", "a='b' c=\"d\"",
        "https://h/datasets/keyframes/a.tar", "https://h/hook/n03532672_10016.JPEG",
        "https://github.com/org/webhooks-demo/archive/main.zip", "https://h/token/train2017/x.tar",
        "https://github.com/org/webhooks/archive/main.zip", "https://hooks.h.org/",
        "https://h/org/webhooks-demo/5f3a9c0e7b2d4f6a8c1e0d9b7a5f3c2e55aa66bb/a.csv",
        "https://h/keys/vit_base_patch16_224/a.h5", "https://docs.h/en/webhooks/about-webhooks",
        "https://pypi.org/simple/tinyhr/", "https://h/simple/5f3a9c0e7b2d4f6a8c1e0d9b7a5f3c2e/",
        "https://pypi.fury.io/me/", "https://h/packages/5f/3a/9c0e7b2d4f6a8c1e0d9b7a5f3c/a.whl",
        "google-auth==2.30.0 (from -r requirements.txt)", "needs PyJWT==2.8.0rc1, PyJWT == 2.8",
        "s3://b/hooks/5f3a9c0e7b2d4f6a8c1e0d9b7a5f3c2e/a", "https://hooks-data.h.org/a/b1c2d3e4/",
    ],
)  # fmt: skip
def test_other_texts_stay_as_they_are(text: str):
    assert redact_text(text) == text
    assert redact((text,)) == (text,)


def test_what_is_no_version_of_a_package_is_none():
    for text in (f"my-auth=={CANARY}", "auth==1.0sesame", "auth==12", "auth: 1.0", "auth=1.0"):
        assert redact_text(text).endswith(HIDDEN)


def test_in_code_only_literals_are_hidden():
    for code in (
        "token = tokenizer(text)", "tokens: int = 5", "x = f(password=password)",
        "tokens = [tok(x) for x in y]", 'special_tokens = ["<pad>", "[CLS]"]', 'f("password", x)',
        'parser.add_argument("--token", "-t", default=None)', 'token = os.getenv("HF_TOKEN")',
        "tokens = tokenizer.encode(text)",
    ):  # fmt: skip
        assert redact_text(code, is_code=True) == code
    assert redact_text('login(token="abc", n=1)', is_code=True) == 'login(token="***", n=1)'
    for code in (
        "password: str = 'abc'", "def f(token: str | None = 'abc'):", "if password == 'abc':",
        "API_KEYS = ['abc', 'abc2']", "get('HF_TOKEN', 'abc')", 'x["token"] = f"""abc',
        "token = 'abc", 'parser.add_argument("--token", type=str, default="abc")',
        "run(['login', '--token', 'abc'])", "get(url, auth=HTTPBasicAuth('me', 'abc'))",
    ):  # fmt: skip
        assert "abc" not in redact_text(code, is_code=True), code


def test_values_of_secret_variables_are_hidden_in_every_form(tmp_path: Path):
    variables = {
        "HF_TOKEN": "s3sa/me+0 x", "DB_PASS": "true", "SSH_AUTH_SOCK": str(tmp_path),
        "HOME": "/root", "MORE_TOKEN": "s3sa/me+0 x and more",
    }  # fmt: skip
    text = f"no s3sa/me+0 x, s3sa%2Fme%2B0%20x, s3sa%2Fme%2B0+x+and+more; true {tmp_path} /root"
    shown = hide_variables(text, variables)
    assert shown == f"no ***, ***, ***; true {tmp_path} /root"


def test_messages_of_a_traceback_are_no_code():
    traceback = """Traceback (most recent call last):
  File "/a/train.py", line 3, in <module>
    connect(password=password, token="abc")
            ^^^^^^^^^^^^^^^^^
ValueError: no login with password=abc, {'Authorization': 'Bearer abc'}
"""
    shown = redact_traceback(traceback)
    assert "connect(password=password, token=" in shown
    assert "abc" not in shown


def test_the_time_to_redact_a_long_word_does_not_grow_with_its_square():
    for piece in ("a-", "a+", "a.", "set", "a=1,", '"', "\\", "token=", "<a>", "name:'a' ",
        "%25", "%3D", "token%3D", "-u a:", "login a password ", "('token',", "token=a(",
    ):  # fmt: skip
        text = piece * (50_000 // len(piece))
        assert len(redact((text, text))) == 2
        redact_text(text, is_code=True)


def test_the_name_of_a_secret_holds_for_all_that_is_in_it():
    within = {"token": {"value": "x", "list": ["y"]}, "auth": ["z"], "db": {"pw": "x"}}
    assert hide_secrets(within) == {
        "token": {"value": "***", "list": ["***"]}, "auth": ["***"], "db": {"pw": "***"},
    }  # fmt: skip
    assert hide_secrets({"args": ["--token", "x", "a"]}) == {"args": ["--token", "***", "a"]}
    named = [{"value": "x", "name": "HF_TOKEN"}, {"Key": "seed", "Value": "3"}]
    assert hide_secrets(named) == [{"value": "***", "name": "HF_TOKEN"}, named[1]]


def test_json_keeps_its_shape():
    request = {"environment": {"HF_TOKEN": "x", "SEED": 3}, "password": None, "max_tokens": 5}
    hidden = {"environment": {"HF_TOKEN": "***", "SEED": 3}, "password": None, "max_tokens": 5}
    assert hide_secrets(request) == hidden


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("password: |\n  {0}\n  {0}\nlr: 1", "password: |\n  ***\nlr: 1"),
        (
            "- db_password: >-  # why\n    {0} x\n\n    {0}\n- lr: 1",
            "- db_password: >-  # why\n    ***\n- lr: 1",
        ),
        ("a:\n  token: |2\n    {0}\n  b: 2", "a:\n  token: |2\n    ***\n  b: 2"),
        ("token: |\n\n  {0}", "token: |\n  ***"),
        ("note: |\n  some words\nlr: 1", "note: |\n  some words\nlr: 1"),
        ("password: |\nlr: 1", "password: |\nlr: 1"),
    ],
)
def test_values_of_several_lines_in_yaml(text: str, shown: str):
    assert redact_text(text.format(PLAIN)) == shown


@pytest.mark.parametrize(
    ("typed", "kept"),
    [
        ("mysql -h db -psesame -e x", "mysql -h db -p*** -e x"),
        ("/usr/bin/mysqldump -psesame db", "/usr/bin/mysqldump -p*** db"),
        ("sshpass -p sesame ssh host", "sshpass -p *** ssh host"),
        ("redis-cli -h db -a sesame ping", "redis-cli -h db -a *** ping"),
        ("mysql -p -h db", "mysql -p -h db"),
        ("train.py -p 8 -a x", "train.py -p 8 -a x"),
        ("cat mysql.log -p4", "cat mysql.log -p4"),
    ],
)
def test_programs_that_take_a_password_by_a_letter(typed: str, kept: str):
    assert list(redact(typed.split())) == kept.split()
    assert redact_text(f"subprocess: {typed}\n") == f"subprocess: {kept}\n"


def test_numbers_among_the_words_of_a_command_line_hide_nothing():
    words = ["--token", PLAIN, f"--api-key={PLAIN}", "--lr", 0.1, "--epochs", 3]
    shown = hide_secrets({"args": words})
    assert PLAIN not in json.dumps(shown)
    assert shown["args"][3:] == words[3:]
    assert hide_secrets({"betas": [0.9, 0.99, 1]}) == {"betas": [0.9, 0.99, 1]}
