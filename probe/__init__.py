"""Attention of pretrained models, checked head by head against attention computed from scratch.

>>> import probe
>>> print(probe.verify("gpt2", "The cat sat on the mat.").verdict)  # doctest: +SKIP
"""

from probe.analyses.ablate import Ablation, Ranking, ablate, rank_heads
from probe.analyses.attend import Run, attend
from probe.analyses.check_model import ModelCheck, check_model
from probe.analyses.checks.report import Cell, HeadCheck, LayerCheck, Report
from probe.analyses.compare import Comparison, compare
from probe.analyses.distances import HeadDistances, distances
from probe.analyses.find import FoundHeads, find_heads
from probe.analyses.masks import MaskComparison, compare_masks
from probe.analyses.measures import HeadMeasures, measure_heads
from probe.analyses.over_texts import OverTexts
from probe.analyses.predict import Prediction, Predictions, predict
from probe.analyses.rerun import FromScratchRun, run_from_scratch
from probe.analyses.rollout import Rollout, rollout
from probe.analyses.texts import TextComparison, compare_texts
from probe.analyses.trace import Trace, trace
from probe.analyses.verify import verify
from probe.errors import ProbeError
from probe.files.export import export
from probe.files.reproduce import Reproduction, reproduce
from probe.files.workbook import to_workbook
from probe.models.loading import Model, load
from probe.running.words import Words, group_words, single_tokens
from probe.version import __version__ as __version__

__all__ = [
    "Ablation",
    "Cell",
    "Comparison",
    "FoundHeads",
    "FromScratchRun",
    "HeadCheck",
    "HeadDistances",
    "HeadMeasures",
    "LayerCheck",
    "MaskComparison",
    "Model",
    "ModelCheck",
    "OverTexts",
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
    "check_model",
    "compare",
    "compare_masks",
    "compare_texts",
    "distances",
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
