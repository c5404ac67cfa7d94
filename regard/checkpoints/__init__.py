"""Weights on disk: files, name tables, published layouts, and folders of models.

Internal: names that `regard` itself does not have may change with every version.
"""
