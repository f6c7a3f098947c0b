"""A coding agent's threads, mounted as files."""

__version__ = "0.1.0"
