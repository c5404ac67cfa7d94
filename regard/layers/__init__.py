"""Layers other than attention: recurrent, convolution, feed-forward, norm, dropout, heads.

Internal: names that `regard` itself does not have may change with every version.
"""
