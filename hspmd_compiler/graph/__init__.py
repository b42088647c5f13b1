"""The logical graph: captured once per model, in global shapes, as rows."""
