"""How many small faults in the core its tests find out.

    python -m millrace_lab.mutation --sample 300 --seed 1 --json FILE

A mutant is one module with one small fault: a comparison swapped, a statement removed. It is found
out if a test fails or does not end. Each runs only against the unit and property tests that call
the function with the fault.
"""
