"""The paper's whole evaluation: its cases, its five figures, and its claims tested.

To run:
cases       the four cases, the budgets, and how much of it all to run
points      plans of a grid, without planning; plans moved to another split
printed     the noise that the paper prints, and what it really spends
store       rows kept on disk, so that a stopped evaluation goes on
lab         run plans on the splits of a case; measured runs as plain rows
planners    the planners as they are asked here, and what each is told
grid        the grid searches, and what they pick on validation rows
evaluation  everything in order

To judge:
reading     find numbers in the rows
statistics  intervals over repeats
claims      what the paper claims, and what the rows say
regret      how far planners fall short of a grid search
findings    all of that, found once

To show:
drawing     figures 1, 3, 4 and 5
searching   figure 2
figures     the five figures, each as in the paper and as planned here
blocks      a document, rendered as HTML and as Markdown
comparisons the parts of it on planners, baselines and the printed noise
document    all that it says
reproduce   run, draw and write, in one call
"""
