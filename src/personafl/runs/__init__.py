"""A run as users see it: opened, exported, watched while it goes on, sent to trackers."""
