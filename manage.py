#!/usr/bin/env python
"""The operators' entry: every command of the relay."""

import sys

if __name__ == "__main__":
    try:
        from config.entry import main

        main(sys.argv)
    except KeyboardInterrupt:  # while it is still starting: an end without a word
        sys.exit(130)
