"""The page in the browser, served on this machine only.

`fedbudget ui` starts Streamlit, which runs `app.py`. The content is computed without
Streamlit, in `loss_map`, `folders` and parts of `run` and `fleet`.
"""
