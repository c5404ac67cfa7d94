"""Weights on disk: files, name tables, published layouts, and folders of models."""
