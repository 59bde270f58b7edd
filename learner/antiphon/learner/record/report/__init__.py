"""`antiphon report`: a run as one HTML file that opens without a network.

run_data      reads the run folder, whatever state the run was left in
statistics    what the numbers say: distributions, second answers against first ones
charts        curves and bars as inline SVG
trees         the trees that the page lets its reader browse
page          puts the page together, with `assets/`
"""
