"""The threads of Codex CLI as a library: find them, replay them, say what is damaged.

Start with `threadstore.store.ThreadStore`. Nothing in this package knows of FUSE or prints, and only
the operations that `ThreadStore` names (fork, revert, undo, compact) write to a store.
"""
