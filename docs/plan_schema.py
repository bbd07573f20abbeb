"""Publish the JSON Schema of a plan: python docs/plan_schema.py."""

import json
from pathlib import Path

from fedbudget import plan_schema

if __name__ == "__main__":
    place = Path(__file__).parent / "plan.schema.json"
    place.write_text(json.dumps(plan_schema(), indent=1) + "\n")
