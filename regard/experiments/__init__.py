"""Experiments: training from a recipe, reports, comparisons of models, and estimates of cost.

Internal: names that `regard` itself does not have may change with every version.
"""
