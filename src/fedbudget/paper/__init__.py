"""The paper's whole evaluation: its cases, its five figures, and its claims tested.

cases       the four cases, the budgets, and how much of it all to run
points      plans of a grid, without planning; plans moved to another split
lab         run plans on the splits of a case; measured runs as plain rows
store       rows kept on disk, so that a stopped evaluation goes on
grid        the grid searches, and what they pick on validation rows
evaluation  everything in order
statistics  intervals over repeats
claims      what the paper claims, and what the rows say
figures     the five figures, each as in the paper and as planned here
page        one HTML page with all of it
"""
