"""Certificates of iteration gaps and queue capacities: about a graph and a setting, which the certificate names."""

from __future__ import annotations

from .certificate import CLAIMS, check_gaps, is_gap_certificate
from .events import EventGraph

__all__ = ["CLAIMS", "EventGraph", "check_gaps", "is_gap_certificate"]
