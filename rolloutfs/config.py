"""Settings that outlive a command: config.toml in the XDG folder, and ROLLOUTFS_… in the environment.

A setting is what the command line says, else the environment, else the file, else the default below. A key that nobody
knows is an error: a misspelt `read_only` must not make a mount that can be written.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

import click
import platformdirs

from rolloutfs.errors import Exit, MountError

_OTHERS = ("summarizer", "summarizer_seconds")


class ConfigError(Exception):
    """The file can't be used; the message names it, and the key if it is about one."""


@dataclass(frozen=True, slots=True)
class MountSettings:
    """How to mount. The names are the keys of config.toml, and in capitals after ROLLOUTFS_ the variables."""

    foreground: bool = False
    replace: bool = False
    read_only: bool = False
    allow_other: bool = False
    index: bool = True
    passthrough: bool = False
    zone: str = "UTC"
    mask_secrets: bool = False
    xattrs: bool | None = None  # where nothing says it, what can be written has them


def file() -> Path:
    """$XDG_CONFIG_HOME/rolloutfs/config.toml."""
    return Path(platformdirs.user_config_dir("rolloutfs")) / "config.toml"


def load() -> dict[str, Any]:
    """What the file says now; nothing when there is none. Raises ConfigError."""
    path = file()
    try:
        with path.open("rb") as opened:
            config = tomllib.load(opened)
    except FileNotFoundError:
        return {}
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} can't be read: {error}.") from error
    known = (*(field.name for field in fields(MountSettings)), *_OTHERS)
    for key in config:
        if key not in known:
            raise ConfigError(f"{path} has a key {key!r}, which is not known. There are: {', '.join(known)}.")
    return config


def mount_settings(said: Mapping[str, bool | str | None]) -> MountSettings:
    """The settings of a mount, from what the command line says: None for what it doesn't. Raises MountError."""
    try:
        config = load()
        kept = {
            field.name: _kept(field.name, config, str if isinstance(field.default, str) else bool)
            for field in fields(MountSettings)
        }
    except ConfigError as error:
        raise MountError(str(error), Exit.USAGE) from error
    settled = {name: kept[name] if said.get(name) is None else said[name] for name in kept}
    given: dict[str, Any] = {name: value for name, value in settled.items() if value is not None}
    return MountSettings(**given)


def _kept(name: str, config: dict[str, Any], kind: type) -> bool | str | None:
    """What the environment says of a setting of a kind (bool or str), else the file."""
    variable = f"ROLLOUTFS_{name.upper()}"
    text = os.environ.get(variable)
    if text and kind is str:
        return text
    if text:
        try:
            return bool(click.BOOL.convert(text, None, None))
        except click.BadParameter:
            raise ConfigError(f"${variable} must be true or false, not {text!r}.") from None
    value = config.get(name)
    if value is not None and not isinstance(value, kind):
        raise ConfigError(f"{name} in {file()} must be {'a text' if kind is str else 'true or false'}.")
    return cast("bool | str | None", value)
