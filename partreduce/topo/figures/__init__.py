"""Figures of a schedule: contraction, consensus distance, drift, Hop's spectral gap."""

from partreduce.topo.figures.base import Drift as Drift
from partreduce.topo.figures.base import Figure as Figure
from partreduce.topo.figures.base import Figures as Figures
from partreduce.topo.figures.base import Kind as Kind
from partreduce.topo.figures.base import PipelineFigures as PipelineFigures
from partreduce.topo.figures.decomposition import FigureLimits as FigureLimits
from partreduce.topo.figures.evaluate import consensus_distance as consensus_distance
from partreduce.topo.figures.evaluate import contraction as contraction
from partreduce.topo.figures.evaluate import drift as drift
from partreduce.topo.figures.evaluate import figures as figures
from partreduce.topo.figures.evaluate import late_distance as late_distance
from partreduce.topo.figures.evaluate import radius as radius
from partreduce.topo.figures.exact import exact_consensus_distance as exact_consensus_distance
from partreduce.topo.figures.hop_gap import hop_gap as hop_gap
from partreduce.topo.figures.pipeline import decay as decay
from partreduce.topo.figures.pipeline import noise_factor as noise_factor
from partreduce.topo.figures.pipeline import pipeline_figures as pipeline_figures
from partreduce.topo.figures.pipeline import stability_limit as stability_limit
