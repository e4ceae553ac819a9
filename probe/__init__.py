"""Attention of pretrained models, checked head by head against attention computed from scratch.

>>> import probe
>>> print(probe.verify("gpt2", "The cat sat on the mat.").verdict)  # doctest: +SKIP
"""

from probe.ablation import Ablation, Ranking, ablate, rank_heads
from probe.capture import Run, attend
from probe.comparison import Comparison, compare
from probe.errors import ProbeError
from probe.files import Reproduction, export, reproduce
from probe.finding import FoundHeads, find_heads
from probe.masking import MaskComparison, compare_masks
from probe.measures import HeadMeasures, Rollout, measure_heads, rollout
from probe.models import Model, load
from probe.prediction import Prediction, Predictions, predict
from probe.report import Cell, HeadCheck, LayerCheck, Report
from probe.rerun import FromScratchRun, run_from_scratch
from probe.texts import TextComparison, compare_texts
from probe.tracing import Trace, trace
from probe.verification import verify
from probe.words import Words, group_words, single_tokens
from probe.workbook import to_workbook

__version__ = "0.1.0"

__all__ = [
    "Ablation",
    "Cell",
    "Comparison",
    "FoundHeads",
    "FromScratchRun",
    "HeadCheck",
    "HeadMeasures",
    "LayerCheck",
    "MaskComparison",
    "Model",
    "Prediction",
    "Predictions",
    "ProbeError",
    "Ranking",
    "Report",
    "Reproduction",
    "Rollout",
    "Run",
    "TextComparison",
    "Trace",
    "Words",
    "ablate",
    "attend",
    "compare",
    "compare_masks",
    "compare_texts",
    "export",
    "find_heads",
    "group_words",
    "load",
    "measure_heads",
    "predict",
    "rank_heads",
    "reproduce",
    "rollout",
    "run_from_scratch",
    "single_tokens",
    "to_workbook",
    "trace",
    "verify",
]
