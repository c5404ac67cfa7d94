"""Attention: each equation once, all of it ending in `attend`.

Internal: names that `regard` itself does not have may change with every version.
"""
