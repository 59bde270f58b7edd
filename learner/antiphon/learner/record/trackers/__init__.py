"""Where the figures of a run are told besides the run folder.

One file per tracker. A new one is a class with `log` and `finish` in a file of its own, a value of
`config.TrackerName`, and a line in `opening.open_tracker`.
"""
