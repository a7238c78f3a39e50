"""Which part a stage plays in the tied parameters of a plan: owner, follower, or none."""

from collections.abc import Mapping
from dataclasses import dataclass

from brigade.wire.plan import Plan


@dataclass(frozen=True, slots=True)
class TiedRoles:
    """The tied parameters that cross a stage's borders, each with the stage on the other side.

    `owned`: follower keys on other stages whose owner lives here, to the follower's stage.
    `followed`: follower keys on this stage whose owner lives elsewhere, to the owner's stage.
    """

    owned: Mapping[str, int]
    followed: Mapping[str, int]


def stage_of_block(plan: Plan, block: int) -> int:
    """Return the stage that holds this block."""
    return next(k for k, stage in enumerate(plan.stages) if stage.first_block <= block < stage.end_block)


def stage_of_key(plan: Plan, key: str) -> int:
    """Return the stage that holds the parameter `"<block>.<name>"`."""
    return stage_of_block(plan, int(key.partition(".")[0]))


def tied_roles(plan: Plan, stage: int) -> TiedRoles:
    """Return what this stage owns for others and follows from others, in the order of the plan."""
    owned: dict[str, int] = {}
    followed: dict[str, int] = {}
    for tied in plan.tied:
        owner_stage = stage_of_key(plan, tied.owner)
        for key in tied.followers:
            follower_stage = stage_of_key(plan, key)
            if owner_stage == stage != follower_stage:
                owned[key] = follower_stage
            elif follower_stage == stage != owner_stage:
                followed[key] = owner_stage
    return TiedRoles(owned, followed)
