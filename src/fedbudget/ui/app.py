"""What Streamlit runs: four pages, one of them shown."""

import argparse
import sys
from pathlib import Path

import streamlit as st

from fedbudget.ui.explore_page import explore_page
from fedbudget.ui.fleet import fleet_page
from fedbudget.ui.results_page import results_page
from fedbudget.ui.run import run_page

_STYLE = """
<style>
  .block-container, .stMainBlockContainer {padding-top: 4.2rem; max-width: 1320px;}
  [data-testid="stMetricValue"] {font-size: 1.6rem;}
  [class*="st-key-cards"] {
    display: grid; gap: .7rem;
    grid-template-columns: repeat(auto-fit, minmax(145px, 1fr));
  }
  [class*="st-key-cards"] > div {width: auto !important;}
  h3 {font-size: 1.15rem !important; padding: .3rem 0 !important;}
  h1 {font-size: 1.9rem !important; padding: 0 0 .2rem 0 !important;}
  @media (max-width: 640px) {
    .block-container, .stMainBlockContainer {padding-left: 1rem; padding-right: 1rem;}
    h1 {font-size: 1.5rem !important;}
  }
</style>
"""


def main() -> None:
    """Show the page that the address names."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=Path, default=Path("runs"))
    parser.add_argument("--fleet", default="")
    asked = parser.parse_args(sys.argv[1:])
    st.set_page_config(
        page_title="fedbudget",
        page_icon=str(Path(__file__).with_name("icon.svg")),
        layout="wide",
    )
    st.html(_STYLE)
    shown = st.navigation(
        [
            st.Page(explore_page, title="Explore", url_path="explore", default=True),
            st.Page(lambda: run_page(asked.runs), title="Run", url_path="run"),
            st.Page(lambda: fleet_page(asked.fleet), title="Fleet", url_path="fleet"),
            st.Page(
                lambda: results_page(asked.runs), title="Results", url_path="results"
            ),
        ],
        position="top",
    )
    shown.run()


if __name__ == "__main__":  # so Streamlit runs it
    main()
