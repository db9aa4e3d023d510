"""A scenario's predicates against this machine, in the words of `gdrstorm check`.

What `check` would say NO or UNKNOWN to is a skip here, with the same evidence; unknown never counts as yes.
"""

from __future__ import annotations

from gdrstorm.errors import UnavailableError
from gdrstorm.model.admission import Admission, Answer
from gdrstorm.model.inventory import Inventory
from gdrstorm.model.scenario import Scenario
from gdrstorm.policy import (
    LINUX_POLICY,
    P2P_POLICY,
    answer_needs,
    find_bar_exporters,
    find_importers,
    judge_pair,
)


def admissions_here(inventory: Inventory) -> tuple[Admission, ...]:
    """Every pair of an exporter and an importer of this machine by the policy that fits the exporter."""
    gpus = [(gpu.bdf, P2P_POLICY) for gpu in inventory.gpus]
    bars = [(bdf, LINUX_POLICY) for bdf in find_bar_exporters(inventory)]
    return tuple(
        judge_pair(inventory, policy, bdf, hca.name)
        for bdf, policy in gpus or bars
        for hca in find_importers(inventory)
    )


def check_predicates(scenario: Scenario, inventory: Inventory) -> None:
    """Raises UnavailableError with every predicate that is not met, UsageError for a name that is none."""
    names = scenario.needs.predicates
    if not names:
        return
    wrong = [
        f"{finding.predicate} is {finding.answer.value.upper()}: {finding.evidence}"
        for finding in answer_needs(admissions_here(inventory), names)
        if finding.answer is not Answer.YES
    ]
    if wrong:
        raise UnavailableError(
            f"{scenario.name} needs {'; '.join(wrong)}", "gdrstorm check tells what to do"
        )
