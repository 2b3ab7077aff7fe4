"""Other libraries on the jobs of `personafl bench`, each in the way that its own documentation shows.

Every `with_*.py` is run as a program, by the interpreter that has the library, which need not have personafl: these
files import nothing but numpy, the library, and each other. What is alike for all of them:

- the same samples, initial weights, learning rate, batch size and numbers of steps, active clients and clients;
- the library's own simulator, sampling of clients, FedAvg and local training loop;
- no evaluation, no checkpoints, no logging beyond what cannot be turned off;
- samples are in memory as tensors, and a batch is one indexing operation: no library is slowed by a `DataLoader`, which
  is what most documentation shows;
- as many processes or threads as are faster for it on this machine, tried in the warm-up.
"""
