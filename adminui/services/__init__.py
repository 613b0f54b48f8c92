"""What admins and operators change, each with its audit entry; an operation a module."""
