"""Search, diagnosis and advice: joins measuring and predicting."""

from workbench.tuning.advice import Advice, advise_batching, is_batching
from workbench.tuning.choice import Choice, choose

__all__ = ["Advice", "Choice", "advise_batching", "choose", "is_batching"]
