"""Make schedules (rules, constructions, synthesis, imports), define their protocols, and simulate runs."""

if __name__ != "partreduce.schedulers":  # `import schedulers` from inside the folder would create every class twice
    raise ImportError("this folder is the package partreduce.schedulers; import it by that name")
