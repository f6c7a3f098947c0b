"""Keys of usual form that open nothing, made when a test runs: no text of this repository looks like one."""

from __future__ import annotations

import base64
import random
import string

_ALL = string.ascii_letters + string.digits
_HEX = "0123456789abcdef"


def _of(seed: str, length: int, letters: str = _ALL) -> str:
    return "".join(random.Random(seed).choices(letters, k=length))


def _lines(seed: str, count: int) -> str:
    return "\n".join(_of(f"{seed}{at}", 64, _ALL + "+/") for at in range(count)) + "\n" + _of(seed, 18) + "=="


def _jwt() -> str:
    head, body = (
        base64.urlsafe_b64encode(text).decode().rstrip("=") for text in (b'{"alg":"HS256"}', b'{"sub":"12345678"}')
    )
    return f"{head}.{body}.{_of('jwt', 43, _ALL + '_-')}"


def _block(kind: str, seed: str, count: int) -> str:
    dashes = "-" * 5
    return f"{dashes}BEGIN {kind}{dashes}\n{_lines(seed, count)}\n{dashes}END {kind}{dashes}"


def _key(prefix: str, length: int, letters: str = _ALL) -> str:
    return prefix + _of(prefix, length - 3, letters) + "Z7q"  # whatever it is asked of, it has


#: By their kind: the key itself, and how it stands in a text, if not alone.
KEYS: dict[str, tuple[str, str]] = {
    "openai-old": (_of("o1", 20), "sk" + "-{}" + "T3Blbk" + "FJ" + _of("o2", 18) + "A9"),
    "openai-project": (_key("sk" + "-proj-", 120, _ALL + "_-"), "{}"),
    "openai-service": (_key("sk" + "-svcacct-", 60, _ALL + "_-"), "{}"),
    "anthropic": (_key("sk" + "-ant-api03-", 95, _ALL + "_-"), "{}"),
    **{f"github-{one}": (_key(f"gh{one}" + "_", 36), "{}") for one in "pousr"},
    "github-fine": (_key("github" + "_pat_", 82), "{}"),
    "gitlab": (_key("gl" + "pat-", 20, _ALL + "_-"), "{}"),
    "aws": (_key("", 40, _ALL + "/+"), "aws_secret_access_key = {}"),
    "aws-variable": (_key("", 40), 'export AWS_SECRET_ACCESS_KEY="{}"'),
    "aws-json": (_key("", 40), '"SecretAccessKey": "{}"'),
    "bearer": (_key("", 40), "Authorization: Bearer {}"),
    "basic": (base64.b64encode(b"somebody:a long word").decode(), "authorization: Basic {}"),
    "url": ("c0rrect-horse!", "postgres://somebody" + ":{}@db.example.com:5432/things"),
    "jwt": (_jwt(), "{}"),
    "slack": (_key("xo" + "xb-123456789012-123456789012-", 24), "{}"),
    "slack-hook": (
        f"T{_of('t', 8, string.ascii_uppercase)}/B{_of('b', 8, string.ascii_uppercase)}/{_of('h', 24)}",
        "https://hooks.slack.com/services/{}",
    ),
    "stripe": (_key("sk" + "_live_", 24), "{}"),
    "stripe-restricted": (_key("rk" + "_live_", 24), "{}"),
    "google": (_key("AI" + "za", 35, _ALL + "_-"), "{}"),
    "npm": (_key("np" + "m_", 36), "{}"),
    "pypi": (_key("py" + "pi-AgEIcHlwaS5vcmc", 120, _ALL + "_-"), "{}"),
    "hugging-face": (_key("h" + "f_", 34, string.ascii_letters), "{}"),
    "groq": (_key("gs" + "k_", 52), "{}"),
    "sendgrid": (f"S{'G'}.{_of('s', 22)}.{_of('g', 43)}", "{}"),
    "rsa": (_block("RSA PRIVATE" + " KEY", "rsa", 24), "{}"),
    "openssh": (_block("OPENSSH PRIVATE" + " KEY", "ssh", 6), "{}"),
    "setting": (_key("", 24), "DB_PASSWORD={}"),
}


def shown(kind: str) -> str:
    """How the key of a kind stands in a text."""
    key, around = KEYS[kind]
    return around.replace("{}", key)


def pieces(kind: str) -> list[str]:
    """What must not be seen of a key: the middle of each of its lines."""
    return [line[len(line) // 2 - 6 :][:12] for line in KEYS[kind][0].split("\n") if "-----" not in line]
