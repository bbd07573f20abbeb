"""The page: thin, served on this machine alone, and without a network.

`fedbudget ui` starts it (`launching`); Streamlit runs `page.py`. What is shown is
computed without Streamlit in `exploring`, `folders`, `running` and `fleet_status`.
"""
