"""How many small faults in the core its tests find out.

    python -m millrace_lab.mutation --sample 300 --seed 1 --json FILE

A mutant is one module with one small fault: a comparison swapped, a statement removed. It is found
out if a test fails or does not end. Each runs only against the unit and property tests that call
the function with the fault, the closest first. `equivalent.toml` lists those that change nothing
that can be observed, each with the reason.

Invariant: the work tree stays as it is, also when the check is killed. Results are kept in
`build/mutation`, so a check that was interrupted goes on where it was; two checks at a time need
two folders (`--work`).
"""
