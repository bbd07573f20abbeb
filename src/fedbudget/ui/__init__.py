"""The page: thin, served on this machine alone, and without a network.

`fedbudget ui` starts Streamlit, which runs `app.py`. What is shown is computed without
Streamlit, in `loss_map`, `folders` and the first halves of `run` and `fleet`.
"""
