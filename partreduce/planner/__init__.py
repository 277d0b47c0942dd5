"""The planner: from a cluster to the schedules worth choosing between, and the one to take.

`plan.plan` is the way through it, in this order:

* `job`: what is asked, within which limits and time;
* `options`: everything that is weighed, one list over every kind: `candidates` names it, the search adds to it, and
  what has no common rounds is run in virtual time (`trials`);
* `axes`: one schedule in every setting that pays, its seconds costed once: how its sums travel (`travel`), what may be
  late (`delay`), steps of a round; each an `option` with its metrics (`measuring`);
* steps: how many more than All-Reduce needs, by one model (`steps_model`), with a pilot's prices (`calibration`);
* the rule: least worst-case regret within the limits (`recommend`, `gain`, `preference`);
* how good that is known to be (`answer`), and what it is compared with (`comparison`).

Around it: `run_off` trains the finalists, `failure_plans` plans for failures, `tables` for tables by rows. The words,
why and what to know, are `report`'s.
"""
