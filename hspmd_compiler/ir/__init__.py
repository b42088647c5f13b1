"""The logical graph in rows, global shapes; and the annotated graph of one pipeline, local rows with layouts.

Enters: values, their texts and files, and our own operators in them. Knows no operator's rule and no pass.
"""
