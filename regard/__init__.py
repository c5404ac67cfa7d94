"""Regard: every sequence model between the LSTM and GPT, in one small package."""

__version__ = "0.1.0"
