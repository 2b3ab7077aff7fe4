"""The round: who trains, what is aggregated, evaluated and written, and where the clients are."""
