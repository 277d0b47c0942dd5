"""Arithmetic shared by all packages, independent of workers and schedules.

`whole_numbers`: primes, divisors, factor lists, logarithms rounded to whole numbers. `exact_matrices`: matrices of
fractions, as whole numbers over one denominator. `lyapunov`: the steady state of Σ ← P Σ Pᴴ + Q, in floats and in
fractions. `pareto`: options that no other dominates. The stand-alone checker in `verify` shares none of it.
"""
