"""Many runs: planned, started, judged, tested for significance."""
