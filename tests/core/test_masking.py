"""Secrets in a text are masked as a whole, whatever stands around them, and nothing else is."""

from __future__ import annotations

import base64
import random
import subprocess
import sys
import uuid
from contextlib import closing
from pathlib import Path

import pytest
from threadstore import index
from threadstore.index import IndexReader
from threadstore.indexing import Indexer
from threadstore.markdown import cut
from threadstore.masking import Masker, MaskingError
from threadstore.secrets import without_secrets
from threadstore.spines import spines
from threadstore.spool import Spool
from threadstore.store import ThreadStore

from tests.core.logs import THREAD, Log, Store, user
from tests.keys import KEYS, pieces, shown

#: How people, programs and JSON texts write what they quote.
AROUND = (
    *("{}", "say {} now", '"{}"', '\\"{}\\"', "'{}'", "{}, and", "{}.", "({})", "<{}>", "**{}**", "`{}`", "[{}]"),
    *(
        "\\n{}\\n",
        "x={}&y=1",
        "key:{}",
        "{};",
        "> {}\n> more",
        "\t{}\t",
        "{}\\nmore",
        "{}:",
        "密钥{}是",
        '{{"a":"{}"}}',
    ),
    *("{} # gitleaks:allow", "{} {}", "{}\n{}", "{},{}", "x\n\n  ```text\n  {}\n  ```\n\nx", "+{}\n-{}\n"),
)
_CHANCE = random.Random("prose")  # the same in each process that collects the tests
PROSE = [
    f"commit {_CHANCE.randbytes(20).hex()}\nAuthor: A. Person <a@example.com>",
    "thread {} of session {}, request_id: {}".format(
        *(uuid.UUID(bytes=_CHANCE.randbytes(16), version=4) for _ in "123")
    ),
    f"sha256:{_CHANCE.randbytes(32).hex()} and integrity sha512-{base64.b64encode(_CHANCE.randbytes(64)).decode()}",
    "The password is wrong; a bearer token is needed, and the secret key: see --token and `api_key=os.environ[...]`.",
    "https://example.com:8080/path?x=1 ssh://git@github.com/a/b.git mailto:a@b.example user@host:22",
    "def ask(self, token: str, password: str = get_password(user1)) -> SecretKeyOfTheThing2: ...",
    "risk-averse task-list sk-learn disk-usage-of-the-whole-machine ghp_ eyJ AKIA xoxb- npm_config_registry hf_hub",
    "max_tokens = 4096, total_tokens: 123456789012345678, cache_key: v1-linux-x64-node20",
    "it begins with -----" + "BEGIN PRIVATE KEY----- and ends with -----" + "END PRIVATE KEY-----, says the manual",
    "Authorization: Bearer $TOKEN\nAuthorization: Basic <credentials>",
]


@pytest.fixture(scope="module")
def mask(patterns: Path) -> Masker:
    """With patterns that are compiled once for all tests."""
    return Masker(str(patterns))


@pytest.mark.parametrize("kind", KEYS)
def test_each_kind(kind: str, mask: Masker) -> None:
    """Nothing of a key is left, what it is for is told, and what is masked stays as it is."""
    for around in AROUND:
        text = around.replace("{{", "{").replace("}}", "}").replace("{}", shown(kind))
        masked = mask(text.encode()).decode()
        assert "[masked: " in masked, text
        assert [piece for piece in pieces(kind) if piece in masked] == [], (around, masked)
        assert mask(masked.encode()).decode() == masked


def test_what_is_around_stays(mask: Masker) -> None:
    """A mask tells the kind and stands where the key stood; names beside it stay."""
    keys = {kind: shown(kind) for kind in ("anthropic", "url", "aws", "rsa", "github-p")}
    text = f"a {keys['anthropic']}, b {keys['url']}\n{keys['aws']}\n{keys['rsa']}\n({keys['github-p']})"
    assert mask(text.encode()).decode() == (
        "a [masked: Anthropic key], b postgres://somebody:[masked: password in a URL]@db.example.com:5432/things\n"
        "aws_secret_access_key = [masked: AWS secret key]\n[masked: private key]\n([masked: GitHub token])"
    )


@pytest.mark.parametrize("text", PROSE)
def test_no_secret(text: str, mask: Masker) -> None:
    """Hashes, ids, code and what people say about secrets stay."""
    assert mask(text.encode()).decode() == text


def test_code_and_prose(mask: Masker) -> None:
    """So do this project's own files, of which tests and docs speak about keys."""
    listed = subprocess.run(["git", "ls-files", "*.py", "*.md"], check=True, capture_output=True, text=True).stdout
    for path in listed.split():
        data = Path(path).read_bytes()
        assert mask(data) == data, path


@pytest.mark.parametrize(
    "piece",
    [
        *(
            "a",
            "sk" + "-",
            "sk" + "-ant-api03-",
            "ghp" + "_",
            "eyJ",
            "eyJhbGciOiJIUzI1NiIsI.",
            "a.",
            "https://a:b",
            "k = ",
        ),
        *("-----BEGIN RSA PRIVATE" + " KEY-----\n", "-----END RSA PRIVATE" + " KEY-----\n", "A" * 70 + "\n", "secret"),
        *("Authorization: Bearer ", "aws_secret_access_key=", "password=", "\\n", "\0", "🙂"),
    ],
)
def test_hostile_texts(piece: str, mask: Masker) -> None:
    """Megabytes of what nearly is a key: an answer, and the same once more."""
    text = (piece.encode() * (2 << 20))[: 2 << 20]
    masked = mask(text)
    assert mask(masked) == masked


def test_no_structure(mask: Masker) -> None:
    """Base64 without end, in one line and in many; what is in its midst is found all the same."""
    data = base64.b64encode(random.Random(1).randbytes(1 << 20))
    lines = b"\n".join(data[at : at + 64] for at in range(0, len(data), 64))
    for text in (data, lines):
        assert mask(text) == text
        half = len(text) // 2
        found = mask(text[:half] + b"\n" + shown("github-p").encode() + b"\n" + text[half:])
        assert found == text[:half] + b"\n[masked: GitHub token]\n" + text[half:]


@pytest.mark.parametrize("kind", ["groq", "rsa", "anthropic"])
def test_wherever_it_stands(kind: str, mask: Masker) -> None:
    """Also where the library is given the next piece of a long text."""
    key = shown(kind)
    for before in range((256 << 10) - len(key) - 2, (256 << 10) + 3, max(len(key) // 9, 1)):
        masked = mask(b"x" * before + f" {key} ".encode() + b"y" * 9000).decode()
        assert masked.startswith("x" * before + " [masked: ")
        assert masked.endswith("] " + "y" * 9000)


@pytest.mark.parametrize("kind", ["openai-project", "rsa", "aws", "bearer", "url", "jwt"])
@pytest.mark.parametrize("line", ["{}", "a line with {} in it", '{"some":"thing","value":"{}","other":"thing"}'])
def test_a_text_that_is_cut(kind: str, line: str, mask: Masker) -> None:
    """Wherever the middle of a long text begins and ends: no piece of a key stays at its edge."""
    key = shown(kind).replace("\n", "\\n") if "{" in line[:1] and len(line) > 2 else shown(kind)
    most = 8 << 10
    for shift in range(0, len(key) + 40, max(len(key) // 17, 1)):
        edge = "filler of a line\n" * 300
        text = edge[: most // 2 - shift] + "\n" + line.replace("{}", key) + "\n" + "filler\n" * 4000
        mirrored = "filler\n" * 4000 + "\n" + line.replace("{}", key) + "\n" + edge[: most // 2 - shift]
        for whole in (text, mirrored):
            parts = cut(whole, most)
            assert parts.missing == len(whole) - len(parts.head) - len(parts.tail)
            masked = mask(f"{parts.head}\n\n{parts.tail}".encode()).decode()
            assert [piece for piece in pieces(kind) if piece in masked] == [], shift


def test_names_of_links() -> None:
    """No piece of a key is in what a name is made of, wherever the text was cut before; other words stay."""
    for kind in KEYS:
        text = f"look at {shown(kind)}"
        for end in range(len(text)):
            left = without_secrets(text[:end])
            assert [piece for piece in pieces(kind) if piece in left] == [], (kind, left)
    assert without_secrets("Fix the flaky test 17 in utf8.py") == "Fix the flaky test 17 in utf8.py"
    assert without_secrets("Mask secrets and tokens") == "Mask secrets and tokens"


def test_without_the_library(mask: Masker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is given rather than what wasn't masked."""
    monkeypatch.setitem(sys.modules, "kingfisher_sdk", None)
    with pytest.raises(MaskingError):
        Masker(None)(b"anything")
    assert mask(b"anything") == b"anything"


def test_a_damaged_folder(tmp_path: Path, patterns: Path) -> None:
    """What was compiled and is damaged is compiled anew."""
    folder = tmp_path / "patterns"
    folder.mkdir(mode=0o700)
    for file in patterns.iterdir():
        (folder / file.name).write_bytes(file.read_bytes()[:-1000])
        (folder / file.name).chmod(0o600)
    assert b"[masked: " in Masker(str(folder))(shown("groq").encode())


def test_names_from_the_index(tmp_path: Path) -> None:
    """The index keeps both names, and whoever reads it takes its own."""
    home = tmp_path / "home"
    Store(home, Log(paginated=True).start("a").item(user("x")).said(f"look at {shown('groq')}", "a").complete("a"))
    path = index.place(str(tmp_path / "index"), str(home))
    with closing(Indexer(ThreadStore(str(home), Spool(str(tmp_path / "spool"))), path)) as indexer:
        indexer.advance("", 60.0)
    names = []
    for mask in (None, bytes):
        store = ThreadStore(str(home), Spool(str(tmp_path / "spool")), index=IndexReader(path), mask=mask)
        store.refresh()
        assert store.kept([THREAD])
        (spine,) = spines(store, [THREAD], whole=True)
        assert spine is not None
        names.append(spine.words)
    assert names[0].startswith("look_at_gsk")
    assert names[1] == "look_at"
