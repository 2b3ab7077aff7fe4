"""Data sets that the papers use, with what it takes to make samples of texts and sounds."""
