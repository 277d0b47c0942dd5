"""Make schedules (rules, constructions, synthesis, imports), define their protocols, and simulate runs."""

if __name__ != "partreduce.schedulers":  # the folder's own name would make a second copy of every class in it
    raise ImportError("this folder is the package partreduce.schedulers; import it by that name")
