"""What reads, a question a module."""
