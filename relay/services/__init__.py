"""What changes things, an operation a module."""
