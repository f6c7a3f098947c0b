"""The threads of Codex CLI as a library: find them, replay them, say what is damaged.

Start with `threadstore.store.ThreadStore`. Nothing in this package knows of FUSE, prints, or writes to a store.
"""
