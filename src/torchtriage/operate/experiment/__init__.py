"""Two versions side by side: who gets which, which one is better, and when that is certain.

>>> from torchtriage.operate.experiment import Experiment, Rate, Tail, Typical
>>> experiment = Experiment(
...     "detector-int8",
...     arms={"fp32": 0.95, "int8": 0.05},
...     metric=Typical("latency_s"),
...     guardrails=[Tail("latency_s", worse_than=1.1), Rate("error", worse_than=1.5)],
... )
>>> arm = experiment.assign("user-17")
>>> experiment.record(arm, latency_s=0.0123, error=False, replica="pod-3")
>>> experiment.decision
'undecided'
"""

from torchtriage.operate.experiment.experiment import Experiment
from torchtriage.operate.experiment.metrics import Metric, Rate, Tail, Typical
from torchtriage.operate.experiment.output_agreement import Agreement, agreement
from torchtriage.operate.experiment.result import ExperimentResult, ExperimentRow
from torchtriage.operate.experiment.shadow import Shadow, ShadowReport
from torchtriage.operate.experiment.split import Split, point

__all__ = [
    "Agreement",
    "Experiment",
    "ExperimentResult",
    "ExperimentRow",
    "Metric",
    "Rate",
    "Shadow",
    "ShadowReport",
    "Split",
    "Tail",
    "Typical",
    "agreement",
    "point",
]
