"""Populations that train, compete and evolve.

`journal` is the single source of truth; `ledger` folds it; `evolve` decides, purely, what follows from the fold;
`orchestrator` does it, on a backend that has the slots. Nothing here imports torch before checkpoints are fused.
"""
