"""Proofs about schedules, the certificates that let a stranger check them, and the checker."""

from preduce.verify.base import Claim as Claim
from preduce.verify.base import Proof as Proof
from preduce.verify.base import Status as Status
from preduce.verify.prove import prove as prove

if __name__ != "preduce.verify":  # the folder's own name would make a second copy of every class in it
    raise ImportError("this folder is the package preduce.verify; import it by that name")
