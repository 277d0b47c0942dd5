"""Arithmetic that every package shares, each kind once; it knows nothing of workers and schedules.

`whole_numbers`: primes, divisors, factor lists, logarithms rounded to whole numbers. `exact_matrices`: matrices of
fractions, as whole numbers over one denominator. `lyapunov`: the steady state of Σ ← P Σ Pᴴ + Q, in floats and in
fractions. `pareto`: what nothing else beats in everything. The stand-alone checker in `verify` shares none of it.
"""
