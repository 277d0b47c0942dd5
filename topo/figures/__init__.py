"""Figures of a schedule: contraction, disagreement, drift, spectral gaps, effective neighbours; see docs/figures.md."""

from preduce.topo.figures.base import Drift as Drift
from preduce.topo.figures.base import Figure as Figure
from preduce.topo.figures.base import Figures as Figures
from preduce.topo.figures.base import Gaps as Gaps
from preduce.topo.figures.base import Kind as Kind
from preduce.topo.figures.circulant import circulant_spectrum as circulant_spectrum
from preduce.topo.figures.circulant import product_spectrum as product_spectrum
from preduce.topo.figures.circulant import torus_spectrum as torus_spectrum
from preduce.topo.figures.circulant import walsh_spectrum as walsh_spectrum
from preduce.topo.figures.decomposition import Limits as Limits
from preduce.topo.figures.evaluate import contraction as contraction
from preduce.topo.figures.evaluate import disagreement as disagreement
from preduce.topo.figures.evaluate import drift as drift
from preduce.topo.figures.evaluate import figures as figures
from preduce.topo.figures.evaluate import n_eff as n_eff
from preduce.topo.figures.evaluate import radius as radius
from preduce.topo.figures.evaluate import rounds_to as rounds_to
from preduce.topo.figures.exact import ExactClass as ExactClass
from preduce.topo.figures.exact import exact_class_matrices as exact_class_matrices
from preduce.topo.figures.exact import exact_disagreement as exact_disagreement
from preduce.topo.figures.rate import expected_partition_factor as expected_partition_factor
from preduce.topo.figures.rate import random_partition_factor as random_partition_factor
from preduce.topo.figures.spectral_gaps import GapKind as GapKind
from preduce.topo.figures.spectral_gaps import spectral_gap as spectral_gap
