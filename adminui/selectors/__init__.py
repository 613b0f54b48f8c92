"""What the console and the commands read."""
