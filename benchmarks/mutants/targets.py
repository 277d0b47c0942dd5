"""Which tests judge which file: quick ones first, thorough ones only for what those let live.

A stage is a tuple of pytest's arguments. The order within a stage matters as well: the first failing test ends it.
"""

from __future__ import annotations

GENERATOR = "schedulers/protocols/group_generator/"
EXPLORED = (
    "tests/schedulers/test_protocol_generator_explored.py",
    "tests/schedulers/test_protocol_generator_mutants.py",
)

ORACLE = "tests/verify/test_prover_oracle.py"
GROUPS = (f"{ORACLE}::test_explicit_groups", f"{ORACLE}::test_rules")
GRAPHS = (f"{ORACLE}::test_graphs", f"{ORACLE}::test_graphs_whose_workers_drop_their_own_value_converge_by_a_power")
PROVER = ("tests/verify/test_prove.py", "tests/verify/test_proof_methods.py")
AVERAGED = ("tests/runtime/test_silent_numbers.py", "tests/runtime/test_against_reference.py")

TARGETS: dict[str, tuple[tuple[str, ...], ...]] = {
    "schedulers/protocols/adpsgd.py": (("tests/schedulers/test_protocol_adpsgd.py",),),
    "schedulers/protocols/digraph.py": (
        ("tests/schedulers/test_protocol_digraph.py", "tests/schedulers/test_protocol_adpsgd.py"),
    ),
    "schedulers/protocols/hop.py": (
        ("tests/schedulers/test_protocol_hop.py",),
        ("tests/verify/test_explore_hop.py", "tests/verify/test_explore_seeded_bugs.py"),
    ),
    GENERATOR + "buffers.py": (("tests/schedulers/test_protocol_generator_buffers.py",), EXPLORED),
    GENERATOR + "draw.py": (("tests/schedulers/test_protocol_generator_draw.py",), EXPLORED),
    GENERATOR + "service.py": (("tests/schedulers/test_protocol_generator_service.py",), EXPLORED),
    GENERATOR + "system.py": (("tests/schedulers/test_protocol_generator_system.py",), EXPLORED),
    GENERATOR + "worker.py": (("tests/schedulers/test_protocol_generator_worker.py",), EXPLORED),
    **{
        f"verify/{name}.py": (GROUPS, (ORACLE, *PROVER))
        for name in ("classes", "conflict_free", "consensus", "trees", "view")
    },
    **{f"verify/{name}.py": (GRAPHS, (ORACLE, *PROVER)) for name in ("graph", "spectral_gap")},
    **{
        f"verify/{name}.py": ((ORACLE,), PROVER)
        for name in ("base", "deadlock_free", "exact_consensus", "rounds", "stochastic")
    },
    "verify/prove.py": ((ORACLE, "tests/verify/test_on_request.py"), PROVER),
    "verify/budget.py": (PROVER,),
    "verify/certificate.py": ((ORACLE, *PROVER),),
    "verify/generated.py": (("tests/verify/test_generated_conditions.py", "tests/verify/test_on_request.py"),),
    "verify/membership.py": (("tests/verify/test_membership_zoo.py",), (ORACLE, *PROVER)),
    "verify/on_request.py": (("tests/verify/test_on_request.py",),),
    "verify/pairing.py": (("tests/schedulers/test_protocol_adpsgd.py",),),
    **{
        f"runtime/averaging/{name}.py": (("tests/runtime/test_commit.py",), AVERAGED)
        for name in ("commit", "gradients", "riders")
    },
    "runtime/averaging/p_reduce.py": (("tests/runtime/test_alone.py",), AVERAGED),
    "runtime/averaging/reducer.py": (("tests/runtime/test_alone.py",), AVERAGED),
    "runtime/averaging/verdicts.py": (("tests/runtime/test_device_path.py",),),
}
