"""What the loss is over the samples of a batch: a mean over labels or samples, or a sum; proved.

`prove.py` deduces the graph with its samples in two micro-batches, at two sizes of the batch;
`batch_forms.py` says of each value how it follows from the samples; `label_counts.py` which labels a count
counts.

Enters: what proves a fact about the loss from rows and layouts.
"""
