"""Layers other than attention: recurrent, convolution, feed-forward, norm, dropout, heads."""
