"""Scenario files to plans: `load` reads and validates, `catalogue` finds, `resolve` makes the Plan."""
