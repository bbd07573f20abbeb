"""Models and plans for other programs.

export.py        the model, to and from scikit-learn and ONNX
plan_schema.py   the JSON Schema of a plan
"""

from fedbudget.interop.export import LinearModel
from fedbudget.interop.plan_schema import plan_schema

__all__ = ["LinearModel", "plan_schema"]
