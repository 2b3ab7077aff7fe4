"""The papers of personafl's algorithms: their tables and figures run again, their theory, special data and models.

A package of its own, known to personafl by its entry points, as a package of yours would be.
"""
