"""Experiments: training from a recipe, reports, comparisons of models, and estimates of cost."""
