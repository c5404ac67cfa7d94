"""The layouts in which models are published, one a file."""
