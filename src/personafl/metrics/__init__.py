"""Metrics of personalized federated learning: functions of arrays with an entry for each client.

They know nothing of runs: give them the columns of `clients.parquet`, or numbers from anywhere else. A client without
test data is NaN (or has n = 0) and is left out; what cannot be said is NaN.

    performance.py      accuracies over clients: weighted, mean, best over rounds, the largest and the worst-off clients
    classification.py   precision, recall and F1 averaged over classes, pooled and for each client
    improvement.py      who is better off than with the global and the local model (QoI, PUI, MPI, …)
    fairness.py         how evenly the improvement is spread (AV, CS, entropy, Jain's index)
    detection.py        false alarms and misses, DET curve, relative FA
    calibration.py      expected calibration error
    permutation.py      exact and Monte Carlo tests by swapping two methods' results client by client
    significance.py     Wilcoxon's test over clients, Holm's correction, mean and standard error over seeds

docs/metrics.md says what each is good for, and which published numbers they reproduce.
"""

from personafl.metrics.calibration import client_calibration_errors, expected_calibration_error
from personafl.metrics.classification import ClientMacroScores, MacroScores, client_macro_scores, macro_scores
from personafl.metrics.detection import (
    DetCurve,
    det_curve,
    equal_error_rate,
    error_rates,
    false_alarm_at,
    relative_false_alarm,
)
from personafl.metrics.fairness import (
    Evenness,
    Fairness,
    average_variance,
    cosine_similarity,
    entropy,
    fairness_of,
    jain_index,
)
from personafl.metrics.improvement import Improvement, improvement_of, quantum_of_improvement
from personafl.metrics.measures import ACCURACY, LOSS, Measure
from personafl.metrics.performance import (
    BestMean,
    Performance,
    accuracies,
    best_mean_accuracy,
    mean_accuracy,
    mean_loss,
    performance_of,
    quantile,
    standard_deviation,
    top_accuracy,
    top_weights,
    weighted_accuracy,
    worst_accuracy,
)
from personafl.metrics.permutation import sign_flip, swap_test
from personafl.metrics.ranking import area_under_curve, average_precision, by_label, concordance_index
from personafl.metrics.significance import PairedTest, SeedMean, holm, mean_over_seeds, wilcoxon

__all__ = [
    "ACCURACY", "LOSS", "BestMean", "ClientMacroScores", "DetCurve", "Evenness", "Fairness", "Improvement",
    "MacroScores", "Measure", "PairedTest", "Performance", "SeedMean", "accuracies", "area_under_curve",
    "average_precision", "average_variance", "best_mean_accuracy", "by_label", "client_calibration_errors",
    "client_macro_scores", "concordance_index", "cosine_similarity", "det_curve", "entropy", "equal_error_rate",
    "error_rates", "expected_calibration_error", "fairness_of", "false_alarm_at", "holm", "improvement_of",
    "jain_index", "macro_scores", "mean_accuracy", "mean_loss", "mean_over_seeds", "performance_of", "quantile",
    "quantum_of_improvement", "relative_false_alarm", "sign_flip", "standard_deviation", "swap_test",
    "top_accuracy", "top_weights", "weighted_accuracy", "wilcoxon", "worst_accuracy",
]  # fmt: skip
