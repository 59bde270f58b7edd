"""The pieces of `benchmarks/parity.py`.

`script`, `cases` and `models` are used by both sides, `comlrl_*` run in CoMLRL's environment only,
`our_*` in this project's; `relations`, `rows` and `page` say what follows from the numbers.
"""
