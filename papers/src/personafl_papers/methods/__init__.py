"""All methods on many federations, each tuned with the same number of tries: `personafl study`.

sizes.py        how large the study is
federations.py  the clients and their data, and which model they train
grids.py        what is tried for each method, written down before the runs
runs.py         the runs, each a line of a file, and what is missing of them
outcomes.py     from lines to what each method reached on each federation
ranks.py        Friedman's test, Nemenyi's critical difference, Holm's correction
findings.py     outcomes and ranks together
words.py        what they say and what they cannot say
page.py         docs/methods-study.md, from the lines and nothing else
picture.py      the critical-difference picture
study.py        all of it, one after the other
"""
