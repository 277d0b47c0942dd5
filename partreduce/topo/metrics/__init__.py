"""Metrics of a schedule: contraction, consensus distance, drift, Hop's spectral gap."""

from partreduce.topo.metrics.base import Drift as Drift
from partreduce.topo.metrics.base import Kind as Kind
from partreduce.topo.metrics.base import Metric as Metric
from partreduce.topo.metrics.base import PipelineMetrics as PipelineMetrics
from partreduce.topo.metrics.base import ScheduleMetrics as ScheduleMetrics
from partreduce.topo.metrics.decomposition import MetricLimits as MetricLimits
from partreduce.topo.metrics.decomposition import hop_gap as hop_gap
from partreduce.topo.metrics.evaluate import consensus_distance as consensus_distance
from partreduce.topo.metrics.evaluate import contraction as contraction
from partreduce.topo.metrics.evaluate import drift as drift
from partreduce.topo.metrics.evaluate import late_distance as late_distance
from partreduce.topo.metrics.evaluate import metrics as metrics
from partreduce.topo.metrics.evaluate import radius as radius
from partreduce.topo.metrics.stability import noise_factor as noise_factor
from partreduce.topo.metrics.stability import pipeline_metrics as pipeline_metrics
from partreduce.topo.metrics.stability import stability_limit as stability_limit
from partreduce.topo.metrics.steady_state import exact_consensus_distance as exact_consensus_distance
