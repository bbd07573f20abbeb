"""The paper's whole evaluation: its cases, its five figures, and its claims tested.

To run:
cases       the four cases, the budgets, how much to run, and the plans of a grid
planners    the planners as they are asked here, and the noise that the paper prints
lab         run plans on the splits of a case; measured runs as plain rows, kept on disk
grid        the grid searches, and what they pick on validation rows
evaluation  everything in order

To judge:
results     means and intervals over repeats, and regret against a grid search
claims      what the paper claims, and what the rows say

To show:
figures     the five figures, each as in the paper and as planned here
blocks      a document, rendered as HTML and as Markdown
document    all that it says
reproduce   run, draw and write, in one call
"""
