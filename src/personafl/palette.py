"""Eight colours that stay apart for colour-blind eyes, for white and for dark paper.

Each pair differs by at least 12 in CIELAB, also as people without red, green or blue cones see them, and each colour
has a contrast of at least 3 with its paper (tests/report/test_palette.py). More methods begin anew with other markers.
"""

LIGHT = ("#0a5ca8", "#e23a1e", "#0c9f6e", "#b8508c", "#5a8cf5", "#8b9433", "#2a2d33", "#6221bd")
DARK = ("#5b8ddb", "#e58350", "#45dba0", "#c4809c", "#aecffb", "#edcf3c", "#ffffff", "#9a6cff")
LIGHT_PAPER, DARK_PAPER = "#ffffff", "#14171c"
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")
"""matplotlib's names; draw.js draws the same shapes in the same order."""
