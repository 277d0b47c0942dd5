"""Run schedules with `torch.distributed`: strategies, handshake, recorder, launcher.

Users import its names from `partreduce`; torch is imported with the first name that needs it.
"""

if __name__ != "partreduce.runtime":  # the folder's own name would make a second copy of every class in it
    raise ImportError("this folder is the package partreduce.runtime; import it by that name")
