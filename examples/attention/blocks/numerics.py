"""Numbers that all kernels of a model must agree on."""

EPSILON = 1e-5  # keeps a norm from dividing by zero
