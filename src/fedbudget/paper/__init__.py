"""The paper's whole evaluation: its cases, its five figures, and its claims tested.

To run:
cases       the four cases, the budgets, the scale, and the plans of a grid
planners    the planners of the evaluation, and the noise that the paper prints
lab         run plans on the splits of a case; measured runs as rows, cached on disk
grid        the grid searches, and their selection on validation rows
evaluation  everything in order

To judge:
results     means and intervals over repeats, and regret against a grid search
claims      the paper's claims, and whether the rows support them

To show:
figures     the five figures, each as in the paper and as planned here
blocks      a document, rendered as HTML and as Markdown
document    the report: a short answer, figures and tables
appendix    the long tables of the report
reproduce   run the evaluation and write the report, in one call
"""
