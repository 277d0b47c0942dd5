"""Make schedules by rules, constructions, synthesis and protocols, and run them in virtual time."""

if __name__ != "partreduce.schedulers":  # the folder's own name would make a second copy of every class in it
    raise ImportError("this folder is the package partreduce.schedulers; import it by that name")
