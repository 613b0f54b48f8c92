"""What changes events: adding, claiming, publishing, handling, settling, burying."""
