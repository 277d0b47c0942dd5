"""Proofs about schedules, the certificates that let a stranger check them, and the checker."""

from partreduce.verify.base import Claim as Claim
from partreduce.verify.base import Proof as Proof
from partreduce.verify.base import Status as Status
from partreduce.verify.prove import prove as prove

if __name__ != "partreduce.verify":  # the folder's own name would make a second copy of every class in it
    raise ImportError("this folder is the package partreduce.verify; import it by that name")
