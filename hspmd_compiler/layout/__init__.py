"""Which elements of a tensor lie where, as the compiler computes with it: factors, cuts, boxes.

Enters: values and pure functions on them; what people write of layouts is in `annotations`. No torch.
"""
