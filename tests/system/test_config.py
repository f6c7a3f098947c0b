"""Settings of a mount: the command line before the environment, before config.toml, before what holds otherwise."""

from __future__ import annotations

from dataclasses import fields
from itertools import product
from pathlib import Path

import pytest

from rolloutfs import config, mount, zones
from rolloutfs import options as mount_options
from rolloutfs.cli import mount_command
from rolloutfs.config import MountSettings
from rolloutfs.errors import Exit, MountError
from tests.mount.conftest import Lab

README = Path(__file__).parents[2] / "README.md"
NAMES = [field.name for field in fields(MountSettings)]
FLAGS = [field.name for field in fields(MountSettings) if not isinstance(field.default, str)]
WORDS = {True: "true", False: "no", None: ""}


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The path of a config.toml that isn't there yet; no setting in the environment."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in NAMES:
        monkeypatch.delenv(f"ROLLOUTFS_{name.upper()}", raising=False)
    (tmp_path / "rolloutfs").mkdir()
    return tmp_path / "rolloutfs" / "config.toml"


@pytest.mark.parametrize("name", FLAGS)
def test_the_first_that_says_something_counts(name: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Flag, variable and key, each yes, no or silent, in all 27 ways; nothing else changes with them."""
    usual = MountSettings()
    for flag, variable, key in product((True, False, None), repeat=3):
        home.write_text("" if key is None else f"{name} = {str(key).lower()}\n")
        monkeypatch.setenv(f"ROLLOUTFS_{name.upper()}", WORDS[variable])
        got = config.mount_settings({name: flag})
        expected = next((said for said in (flag, variable, key) if said is not None), getattr(usual, name))
        assert getattr(got, name) is expected, (flag, variable, key)
        assert [one for one in NAMES if getattr(got, one) != getattr(usual, one)] in ([], [name])


def test_a_name_that_is_set(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The zone in the command line counts before that in the environment, which counts before that in the config."""
    assert config.mount_settings({}).zone == "UTC"
    home.write_text('zone = "Asia/Tokyo"\n')
    assert config.mount_settings({"zone": None}).zone == "Asia/Tokyo"
    monkeypatch.setenv("ROLLOUTFS_ZONE", "Europe/Berlin")
    assert config.mount_settings({}).zone == "Europe/Berlin"
    assert config.mount_settings({"zone": "America/Lima"}).zone == "America/Lima"
    assert mount_options.parse(["ro,zone=Pacific/Apia"]) == mount_options.Options(read_only=True, zone="Pacific/Apia")


@pytest.mark.parametrize("name", ["Europe/Berlim", "Europe", "", "../UTC", "/etc/localtime", "\x1b[31m", "no\0zone"])
def test_a_zone_that_is_none(name: str) -> None:
    """One sentence, before anything is mounted."""
    with pytest.raises(MountError, match="no time zone") as refused:
        zones.find(name)
    assert refused.value.code == Exit.USAGE
    assert "\x1b" not in refused.value.message


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("zone = true\n", "zone"),
        ("read_onyl = true\n", "'read_onyl'"),
        ("[mount]\nread_only = true\n", "'mount'"),
        ('read_only = "yes"\n', "read_only"),
        ("index = 1\n", "index"),
        ("read_only = maybe\n", "line 1"),
        ("\udcff = 1\n", "can't be read"),
    ],
)
def test_a_config_that_is_wrong(home: Path, text: str, told: str) -> None:
    """One sentence that names the file and the key; a misspelt key is not passed over."""
    home.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(MountError) as refused:
        config.mount_settings({})
    assert refused.value.code == Exit.USAGE
    assert str(home) in refused.value.message
    assert told in refused.value.message


@pytest.mark.parametrize("name", NAMES)
def test_the_readme_has_every_setting(name: str) -> None:
    """A line with its flag, variable and key, and what holds otherwise; `mount` knows the flag."""
    flags = {option for parameter in mount_command.params if parameter.name == name for option in parameter.opts}
    (line,) = [line for line in README.read_text().split("\n") if f"| `ROLLOUTFS_{name.upper()}` | `{name}` |" in line]
    assert max(flags, key=len) in line
    otherwise = getattr(MountSettings(), name)
    told = "`true`, of a read-only mount `false`" if otherwise is None else f"`{str(otherwise).lower()}`"
    assert line.lower().endswith(f"| {told} |")


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("said", [None, False, True])
def test_xattrs_follow_what_can_be_written(read_only: bool, said: bool | None) -> None:
    """Unless something is said of them."""
    settings = config.MountSettings(read_only=read_only, xattrs=said)
    assert mount.Request.of("/store", "/place", settings).xattrs is (not read_only if said is None else said)
    assert mount_options.parse(["ro,noxattrs", "xattrs"]).xattrs is True
    assert mount_options.parse(["xattrs,noxattrs"]).xattrs is False


def test_a_variable_that_is_wrong(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name and what it says are told."""
    monkeypatch.setenv("ROLLOUTFS_INDEX", "sometimes")
    with pytest.raises(MountError, match=r"\$ROLLOUTFS_INDEX must be true or false, not 'sometimes'"):
        config.mount_settings({})


def test_real_mounts(lab: Lab) -> None:
    """Without control files when the config says so; with them when the environment says no, or an option does."""
    thread = lab.sample.add(1)
    place = lab.folder / "config" / "rolloutfs" / "config.toml"
    place.parent.mkdir(parents=True)
    place.write_text('read_only = true\nsummarizer = "true"\nindex = false\n')
    for options, variable, expected in [
        ((), "", False),
        ((), "no", True),
        (("--read-only",), "no", False),
        (("-o", "rw"), "yes", True),
        (("-o", "noauto"), "yes", False),
        (("--read-write",), "yes", True),
    ]:
        lab.run("mount", *options, lab.sample.root, lab.mountpoint, ROLLOUTFS_READ_ONLY=variable)
        assert (lab.thread(thread) / "fork").exists() is expected, (options, variable)
        lab.run("umount", lab.mountpoint)
    assert not (lab.folder / "cache" / "rolloutfs" / "index").exists()
    place.write_text("indx = false\n")
    told = lab.run("mount", lab.sample.root, lab.mountpoint, code=2).stderr
    assert str(place) in told
    assert "'indx'" in told
    assert lab.run("mount", "--help").stderr == ""
    assert not lab.is_mounted()
