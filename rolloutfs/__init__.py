"""A coding agent's threads, mounted as files."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("rolloutfs")
except PackageNotFoundError:  # run from a source tree that isn't installed
    __version__ = "0.1.0"
