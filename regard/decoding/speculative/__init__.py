"""Speculative decoding: a draft guesses tokens, and the model checks them all in one step."""
