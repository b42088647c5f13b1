"""The passes as values, each in a file of its name: its options, what it decides as text, its check."""
