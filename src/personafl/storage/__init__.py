"""What is kept on the disk: run folders, checkpoints, client states, evaluations, the cache."""
