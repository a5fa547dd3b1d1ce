"""Measures of what rounding did to an array, each with a plot."""

from lowprec.statistics.counts import Magnitudes, magnitudes
from lowprec.statistics.histogram import ExponentHistogram, exponent_histogram
from lowprec.statistics.measures import relative_error, signal_to_noise_ratio, ulp_distance, ulp_error
from lowprec.statistics.plots import (
    plot_exponent_histogram,
    plot_lost_updates,
    plot_relative_error,
    plot_shares,
    plot_signal_to_noise_ratio,
    plot_ulp_distance,
    plot_ulp_error,
)
from lowprec.statistics.shares import Shares, shares
from lowprec.statistics.underflow import Underflow, underflow
from lowprec.statistics.updates import LostUpdates, UpdateCount, lost_updates

__all__ = [
    "ExponentHistogram",
    "LostUpdates",
    "Magnitudes",
    "Shares",
    "Underflow",
    "UpdateCount",
    "exponent_histogram",
    "lost_updates",
    "magnitudes",
    "plot_exponent_histogram",
    "plot_lost_updates",
    "plot_relative_error",
    "plot_shares",
    "plot_signal_to_noise_ratio",
    "plot_ulp_distance",
    "plot_ulp_error",
    "relative_error",
    "shares",
    "signal_to_noise_ratio",
    "ulp_distance",
    "ulp_error",
    "underflow",
]


def __dir__() -> list[str]:
    return sorted(__all__)
