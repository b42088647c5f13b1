"""What dims are made of, found without names: which ones tensor parallelism may split, and together.

Enters: terms of dims, and what follows from them for parameters: `infer_dims`, `split_candidates` and
`split_units`, in this order, and for what stays whole `whole_parameters`.
"""
