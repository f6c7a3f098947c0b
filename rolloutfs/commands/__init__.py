"""The commands that tell something of a store and change nothing: one module each."""
