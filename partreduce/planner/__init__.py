"""Find the schedules worth comparing on a cluster, and recommend one of them.

`plan.plan` calls the modules in this order:

* `job`: the request, its limits and its time;
* `options`: all options of every kind: `candidates` lists them, the search adds to them, and strategies without common
  rounds are run in virtual time (`trials`);
* `axes`: one schedule in every setting that pays, with its stages costed once: transport (`travel`), delay (`delay`),
  steps per round; each setting is an `option` with its metrics (`measuring`);
* steps relative to All-Reduce, by one model (`steps_model`), with a pilot's prices (`calibration`);
* the decision rule: least worst-case regret within the limits (`recommend`, `gain`, `preference`);
* the proved quality of the answer (`answer`), and its baselines (`comparison`).

`run_off` trains the finalists, `failure_plans` plans for failures, and `tables` places embedding tables. `report`
writes the reasons and cautions.
"""
