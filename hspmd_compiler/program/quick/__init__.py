"""Types of the results of common operators by rule, without PyTorch: a price needs no more of most programs.

PyTorch's own kernels without data are Python, and the first of them imports what symbolic shapes need: most
of a second, and PyTorch itself takes another. What has no rule here is PyTorch's to answer.

Enters: operands as shapes, element types and strides. Imports base values; only `mode` imports torch.
"""
