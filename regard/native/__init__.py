"""Decoding at the speed at which weights can be read: quantized weights and compiled kernels."""
