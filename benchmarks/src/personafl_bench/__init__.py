"""`personafl bench`: what a round takes, beside references, other libraries, and what the machine could do.

`run` measures, `jobs` says what is done, `contest` has everybody do it in turns, `own` and `peers` are those who do it,
`references` bounds what is possible, `report` and `picture` show it. Only ratios mean anything, and only those of one
run.
"""
