"""The views: each parses, calls one service or selector, and shapes the answer."""
