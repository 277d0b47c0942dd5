"""The referee: what the tool does, recorded as small files, and compared with what a later checkout does.

    python -m benchmarks.referee compare                    # all parts, in this checkout
    python -m benchmarks.referee compare --part metrics     # one of them; --only PATTERN picks artefacts by name
    python -m benchmarks.referee record --part metrics      # write the records anew

Every artefact is an input and what comes of it. `compare` takes the inputs from the records, so that both sides see the
same ones, and translates inputs and outcomes by the tables of `words.py`: a renamed key or word is no difference. What
changed on purpose stands in `explained.toml`, with its reason. The exit code is 1 if anything else differs.

To record what another checkout does, let its package come first and this one's folder be found:

    PYTHONPATH=OTHER:THIS/benchmarks OTHER/.venv/bin/python -P -m referee record

All uses of partreduce stand in `tool.py`, `inputs.py` and `schedules.py`.
"""
