"""Compare candidate schedules for a cluster, and recommend one of them.

`plan.plan` takes a request (`job`), collects all candidates (`options`: the catalogue in every useful setting of
`axes`, the search, and the other kinds of `candidates`, run by `trials`), each with its seconds, metrics and predicted
steps (`measuring`, `steps_model`, with a pilot's prices by `calibration`), and chooses one (`recommend`).
`failure_plans` plans for failures, and `tables` places embedding tables. `report` compares the recommendation with
simple schedules, and formats reasons and cautions for the user.
"""
