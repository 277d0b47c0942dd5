"""Which tests judge which file: quick ones first."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
GENERATOR = "partreduce/schedulers/protocols/group_generator/"
EXPLORED = (
    "tests/schedulers/protocols/test_generator_explored.py",
    "tests/schedulers/protocols/test_generator_mutants.py",
)

ORACLE = "tests/verify/test_prover_oracle.py"
GROUPS = (f"{ORACLE}::test_explicit_groups", f"{ORACLE}::test_rules")
GRAPHS = (f"{ORACLE}::test_graphs", f"{ORACLE}::test_graphs_whose_workers_drop_their_own_value_converge_by_a_power")
PROVER = ("tests/verify/test_prove.py", "tests/verify/test_proof_methods.py")
RUNS = "tests/verify/test_claims_of_runs.py"
SAYS = "tests/verify/test_what_a_proof_says.py"
STEADY = "tests/verify/test_steady_state_claims.py"
ON_REQUEST = "tests/verify/test_on_request.py"
TABLE_CLAIMS = "tests/verify/test_table_claims.py"
QUORUM_CLAIMS = "tests/verify/test_quorum_claims.py"
CHECKER = (
    *(f"tests/verify/checker/test_checker_{of}.py" for of in ("edges", "numbers")),
    *(f"tests/verify/checker/test_{of}.py" for of in ("facts", "gap_facts", "what_the_checker_reads")),
    *(f"tests/verify/test_{of}_claims.py" for of in ("kept_gap", "quorum")),
    QUORUM_CLAIMS,
    RUNS,
    TABLE_CLAIMS,
)
"""Of all files of the checker but its program."""
ISOLATED = "not program"
"""Which tests are run: what starts the checker as a program, without site-packages, cannot import mutmut."""
LOOKED_UP = (
    "tests/runtime/sharding/test_hybrid.py",
    "tests/runtime/sharding/test_row_codes.py",
    *(f"tests/runtime/sharding/test_hybrid_{name}.py" for name in ("bytes", "faults", "after_mistakes")),
)
HYBRID = (LOOKED_UP, ("tests/runtime/sharding/test_hybrid_state.py",))
SHARDING = ("placement", "saved", "table", "tables", "wire")
ROUTES = (("tests/partreduce/planner/test_routes.py",), ("tests/partreduce/planner/test_design_model.py",))
QUORUM_RUNS = "tests/runtime/strategies/test_quorum.py"
QUORUM_ARRAYS = "tests/runtime/strategies/test_quorum_arrays.py"
AVERAGED = ("tests/runtime/test_silent_numbers.py", "tests/runtime/averaging/test_against_reference.py")

LAUNCHER_LAWS = "tests/runtime/launcher/test_launcher_laws.py"

TARGETS: dict[str, tuple[tuple[str, ...], ...]] = {
    "benchmarks/explore/reductions.py": (
        tuple(f"tests/schedulers/protocols/test_{of}.py" for of in ("digraph", "hop", "adpsgd", "generator_system")),
    ),
    "partreduce/schedulers/protocols/adpsgd.py": (("tests/schedulers/protocols/test_adpsgd.py",),),
    "partreduce/schedulers/protocols/shards.py": (("tests/schedulers/protocols/test_shards.py",),),
    "partreduce/schedulers/protocols/digraph.py": (
        ("tests/schedulers/protocols/test_digraph.py", "tests/schedulers/protocols/test_adpsgd.py"),
    ),
    "partreduce/schedulers/protocols/hop.py": (
        ("tests/schedulers/protocols/test_hop.py",),
        ("tests/verify/explore/test_hop.py", "tests/verify/explore/test_seeded_bugs.py"),
    ),
    "partreduce/schedulers/protocols/partial.py": (
        ("tests/schedulers/protocols/test_partial.py",),
        ("tests/verify/explore/test_partial.py",),
    ),
    GENERATOR + "buffers.py": (("tests/schedulers/protocols/test_generator_buffers.py",), EXPLORED),
    GENERATOR + "draw.py": (("tests/schedulers/protocols/test_generator_draw.py",), EXPLORED),
    GENERATOR + "service.py": (("tests/schedulers/protocols/test_generator_service.py",), EXPLORED),
    GENERATOR + "worker.py": (
        tuple(f"tests/schedulers/protocols/test_generator_{of}.py" for of in ("worker", "system")),
        EXPLORED,
    ),
    **{
        f"partreduce/schedulers/protocols/membership/{name}.py": (
            ("tests/schedulers/protocols/test_membership_steps.py",),
            ("tests/schedulers/protocols/test_membership.py",),
        )
        for name in ("machine", "messages")
    },
    "partreduce/verify/consensus.py": (GROUPS, GRAPHS, (ORACLE, *PROVER)),
    **{f"partreduce/verify/{name}.py": ((SAYS, ON_REQUEST), (ORACLE,)) for name in ("base", "prove")},
    "partreduce/verify/certificate.py": ((SAYS,), PROVER),
    "partreduce/verify/asynchronous.py": ((ON_REQUEST, "tests/verify/test_generated_conditions.py"),),
    "partreduce/verify/membership.py": (
        ("tests/verify/test_membership_laws.py", "tests/verify/test_proof_methods.py", ORACLE),
        ("tests/verify/test_membership_zoo.py",),
    ),
    "partreduce/verify/contraction.py": (GROUPS, (STEADY, ORACLE, *PROVER)),
    "partreduce/verify/steady_state.py": ((STEADY, "tests/verify/test_outer_consensus.py"), PROVER),
    "partreduce/verify/facts.py": ((RUNS,), (SAYS,)),
    "partreduce/verify/payload.py": ((RUNS, TABLE_CLAIMS), (SAYS,)),
    "partreduce/verify/rounds.py": ((RUNS, QUORUM_CLAIMS), (SAYS,)),
    "partreduce/verify/iteration_gap.py": (("tests/verify/test_kept_gap_claims.py",),),
    **{
        str(path.relative_to(ROOT)): (CHECKER,)
        for path in sorted((ROOT / "partreduce" / "verify" / "checker").rglob("*.py"))
        if path.stem not in ("__main__", "program")
    },
    **{
        f"partreduce/runtime/averaging/{name}.py": (("tests/runtime/averaging/test_commit.py",), AVERAGED)
        for name in ("bucket", "gradients")
    },
    "partreduce/runtime/averaging/p_reduce.py": (("tests/runtime/test_alone.py",), AVERAGED),
    "partreduce/runtime/averaging/reducer.py": (("tests/runtime/test_alone.py",), AVERAGED),
    "partreduce/runtime/averaging/device_checks.py": (("tests/runtime/devices/test_device_path.py",),),
    "partreduce/topo/graphs/named.py": (("tests/topo/metrics/test_golden.py", "tests/topo/graphs/test_graphs.py"),),
    "partreduce/planner/tables.py": ROUTES,
    **{
        f"partreduce/planner/{name}.py": (("tests/partreduce/planner/test_quorums.py",),)
        for name in ("candidates", "trials")
    },
    **{f"partreduce/runtime/sharding/{name}.py": HYBRID for name in SHARDING},
    "partreduce/runtime/strategies/quorum/gradients.py": ((QUORUM_RUNS,),),
    "partreduce/runtime/strategies/quorum/driver.py": ((QUORUM_ARRAYS,), (QUORUM_RUNS,)),
    "partreduce/runtime/strategies/gap/driver.py": (
        ("tests/runtime/strategies/test_gap_driver.py",),
        ("tests/schedulers/simulator/test_gap_replay.py", "tests/runtime/strategies/test_gap.py"),
    ),
    "partreduce/runtime/liveness/heartbeat.py": (
        ("tests/runtime/liveness/test_wait_chain.py",),
        ("tests/runtime/liveness/test_who_has_gone_on.py",),
    ),
    "partreduce/runtime/launcher/launch.py": ((LAUNCHER_LAWS,), ("tests/runtime/processes/test_training.py",)),
    "partreduce/runtime/launcher/supervision.py": ((LAUNCHER_LAWS,), ("tests/runtime/launcher/test_cleanup.py",)),
}
