"""Attention: each equation once, all of it ending in `attend`."""
