"""What a model and its training cost, before you start: parameters, FLOPs, memory and time."""

from pellucid.plan.accelerators import ACCELERATORS as ACCELERATORS
from pellucid.plan.accelerators import PlanError as PlanError
from pellucid.plan.flops import flops as flops
from pellucid.plan.format import plan_lines as plan_lines
from pellucid.plan.planning import Plan as Plan
from pellucid.plan.planning import as_dict as as_dict
from pellucid.plan.planning import largest_batch as largest_batch
from pellucid.plan.planning import make_plan as make_plan
from pellucid.plan.speed import StepSpeed as StepSpeed
from pellucid.plan.speed import training_speed as training_speed
