"""Proofs about schedules, the certificates that let a stranger check them, and the checker."""

from verify.base import Claim as Claim
from verify.base import Proof as Proof
from verify.base import Status as Status
from verify.prove import prove as prove
