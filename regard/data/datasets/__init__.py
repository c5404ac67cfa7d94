"""Readers of published datasets in their own file formats: GLUE, CoNLL, SQuAD, multiple choice."""
