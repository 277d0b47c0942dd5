"""Figures of a schedule: contraction, disagreement, drift, spectral gaps, effective neighbours; see docs/figures.md."""

from topo.figures.base import Drift as Drift
from topo.figures.base import Figure as Figure
from topo.figures.base import Figures as Figures
from topo.figures.base import Gaps as Gaps
from topo.figures.base import Kind as Kind
from topo.figures.circulant import circulant_spectrum as circulant_spectrum
from topo.figures.circulant import product_spectrum as product_spectrum
from topo.figures.circulant import torus_spectrum as torus_spectrum
from topo.figures.circulant import walsh_spectrum as walsh_spectrum
from topo.figures.evaluate import contraction as contraction
from topo.figures.evaluate import disagreement as disagreement
from topo.figures.evaluate import drift as drift
from topo.figures.evaluate import figures as figures
from topo.figures.evaluate import n_eff as n_eff
from topo.figures.evaluate import radius as radius
from topo.figures.evaluate import rounds_to as rounds_to
from topo.figures.exact import ExactClass as ExactClass
from topo.figures.exact import exact_class_matrices as exact_class_matrices
from topo.figures.exact import exact_disagreement as exact_disagreement
from topo.figures.gaps import GapKind as GapKind
from topo.figures.gaps import spectral_gap as spectral_gap
from topo.figures.limits import Limits as Limits
from topo.figures.partitions import expected_partition_factor as expected_partition_factor
from topo.figures.partitions import random_partition_factor as random_partition_factor
