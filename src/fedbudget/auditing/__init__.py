"""An empirical audit of a privacy claim, on synthetic canary rows.

settings.py      the claims of a plan, one for each kind of device
upload_claims.py the claims of plans whose server sees only sums
canaries.py      crafted tables that differ in one row, or in all
mechanisms.py    the release paths under test, behind one small protocol
release_path.py  the path of releases in this process; kernels.py compiles its calls
upload_paths.py  uploads to a sum, on both paths
sensitivity.py   part (a): the sums of neighbouring tables, in whole numbers
noise.py         part (b): variance, tails and cells of the noise
grids.py         part (c): released values lie on their grid
trials.py        part (d): whole runs on both tables, thousands of times
bounds.py        what the trials say about epsilon, from below
guards.py        part (d) through a device's guard, under its owner's policy
sum_policies.py  what a policy releases in sums, and what its ledger refuses
audits.py        all parts of a claim, with controls (part (e)) and a verdict
entry.py         `audit`: a plan, a policy or a run
"""

from fedbudget.auditing.audits import ClaimAudit
from fedbudget.auditing.entry import Audit, audit

__all__ = ["Audit", "ClaimAudit", "audit"]
