"""`fit`: a federation and a budget of time in; a model for each client, and how good it is, out."""
