"""Models and plans for other programs.

linear.py       the released model as a value; to and from scikit-learn
onnx_files.py   the same to and from ONNX
schemas.py      the JSON Schema of a plan
"""

from fedbudget.interop.export import LinearModel
from fedbudget.interop.plan_schema import plan_schema

__all__ = ["LinearModel", "plan_schema"]
