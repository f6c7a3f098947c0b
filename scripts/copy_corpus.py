"""Copies stores of the Codex corpus, reduced to what the tests use.

    .venv/bin/python scripts/copy_corpus.py SOURCE [DESTINATION]

SOURCE holds one folder a store, each with `codex_home/` (the store as Codex left it) and `expected.json` (what Codex
0.171.0 rebuilt from it).  DESTINATION (tests/corpus unless given) gets, for each of them:

* `codex_home/`: every rollout and `session_index.jsonl` byte for byte; `state_5.sqlite` as `state_5.sqlite.zst`.
  Other databases hold nothing that selects or describes a thread and are left out.
* `expected.json`: the answers that the tests compare with, one thread a line.
* `inputs.json.zst`: {thread id: Codex's model input up to and including the first item of the probe's own turn}.

A store that is in DESTINATION already is replaced; others there are kept.  The output depends on nothing but SOURCE.
`tests/corpus_store.py` reads both forms.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import zstandard

STORE_FIELDS = ("scenario", "description", "mode", "cli_version", "notes")
TURN_FIELDS = ("id", "status", "error", "startedAt", "completedAt", "durationMs")
PROBE_FIELDS = ("probe_start_index", "error", "via")
THREAD_FIELDS = (
    "id",
    "name",
    "preview",
    "forkedFromId",
    "parentThreadId",
    "path",
    "createdAt",
    "updatedAt",
    "cwd",
    "modelProvider",
    "gitInfo",
    "cliVersion",
    "source",
    "agentNickname",
    "agentRole",
    "historyMode",
)


def pick(source: dict[str, Any], fields: tuple[str, ...]) -> dict[str, Any]:
    """The members of `source` that are named in `fields`, as far as it has them."""
    return {field: source[field] for field in fields if field in source}


def reduce_turns(turns: Any) -> Any:
    """Codex's list of turns without their items; its error object as it is."""
    if not isinstance(turns, list):
        return turns
    return [{k: v for k, v in pick(turn, TURN_FIELDS).items() if k != "error" or v is not None} for turn in turns]


def reduce_thread(thread: dict[str, Any]) -> dict[str, Any]:
    """One thread's answers without the model input, which goes into a file of its own."""
    probe = thread["probe"]
    reduced_probe = pick(probe, PROBE_FIELDS)
    resumed = probe.get("resumed")
    if resumed is not None:
        reduced_probe["resumed"] = pick(resumed, ("model", "cwd")) | {"thread": pick(resumed["thread"], ("path",))}
    read = thread["read"]
    return {
        "turns": reduce_turns(thread["turns"]),
        "read": read if "thread" not in read else {"thread": pick(read["thread"], THREAD_FIELDS)},
        "probe": reduced_probe,
    }


def listed_id(entry: Any) -> str:
    """The thread id of one entry of a list: an object, or a remark that it equals one of another list."""
    if isinstance(entry, str):
        return entry.removesuffix(">").rpartition("id=")[2]
    return str(entry["id"])


def reduce_expected(expected: dict[str, Any]) -> tuple[dict[str, Any], dict[str, list[Any]]]:
    """The two files made of one `expected.json`: answers and model inputs."""
    answers = pick(expected, STORE_FIELDS)
    answers["thread_list"] = {
        kind: [listed_id(entry) for entry in entries] for kind, entries in expected["thread_list"].items()
    }
    answers["threads"] = {thread_id: reduce_thread(thread) for thread_id, thread in expected["threads"].items()}
    inputs = {
        thread_id: thread["probe"]["model_input"][: thread["probe"]["probe_start_index"] + 1]
        for thread_id, thread in expected["threads"].items()
        if "model_input" in thread["probe"]
    }
    return answers, inputs


def dump(value: Any) -> str:
    """Compact JSON; key order is kept, since items are compared as Codex sent them."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def dump_answers(answers: dict[str, Any]) -> str:
    """JSON with one line a member, and below `threads` one line a thread."""
    members = [f"{dump(key)}:{dump(value)}" for key, value in answers.items() if key != "threads"]
    threads = ",\n".join(f" {dump(thread_id)}:{dump(thread)}" for thread_id, thread in answers["threads"].items())
    members.append(f'"threads":{{\n{threads}\n}}')
    return "{" + ",\n".join(members) + "}\n"


def compress(data: bytes) -> bytes:
    """One zstd frame."""
    return zstandard.ZstdCompressor(level=19, write_checksum=True).compress(data)


def copy_home(source: Path, destination: Path) -> None:
    """Copies the files of a Codex home that the tests use."""
    for path in sorted(source.rglob("*")):
        target = destination / path.relative_to(source)
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.name == "session_index.jsonl" or path.name.startswith("rollout-"):
            shutil.copyfile(path, target)
        elif path.name == "state_5.sqlite":
            target.with_name("state_5.sqlite.zst").write_bytes(compress(path.read_bytes()))


def copy_store(source: Path, destination: Path) -> None:
    """Copies one store, replacing what is there."""
    if destination.exists():
        shutil.rmtree(destination)
    destination.mkdir(parents=True)
    copy_home(source / "codex_home", destination / "codex_home")
    answers, inputs = reduce_expected(json.loads((source / "expected.json").read_bytes()))
    (destination / "expected.json").write_text(dump_answers(answers), encoding="utf-8")
    (destination / "inputs.json.zst").write_bytes(compress(dump(inputs).encode()))


def main(arguments: list[str]) -> int:
    """Copies every store below the first argument into the second."""
    if len(arguments) not in (1, 2):
        print("usage: copy_corpus.py SOURCE [DESTINATION]", file=sys.stderr)
        return 2
    destination = Path(arguments[1]) if len(arguments) == 2 else Path(__file__).parent.parent / "tests/corpus"
    stores = sorted(path.parent for path in Path(arguments[0]).glob("*/expected.json"))
    for store in stores:
        copy_store(store, destination / store.name)
    size = sum(path.stat().st_size for path in destination.rglob("*") if path.is_file())
    print(f"{len(stores)} stores copied; {destination} holds {size / 1e6:.2f} MB")
    return 0 if stores else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
