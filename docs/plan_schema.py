"""Publish the JSON Schema of a plan: python docs/plan_schema.py."""

import json
from pathlib import Path

from fedbudget import plan_schema

if __name__ == "__main__":
    path = Path(__file__).parent / "plan.schema.json"
    path.write_text(json.dumps(plan_schema(), indent=1) + "\n")
