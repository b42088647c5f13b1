"""The matrix of models and strategies that compile to exactly what one device computes."""
