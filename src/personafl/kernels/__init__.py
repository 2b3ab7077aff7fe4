"""A torch module as functions of a flat vector of parameters, for one client and for K clients at once."""
