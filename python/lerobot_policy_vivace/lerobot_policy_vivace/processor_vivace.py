"""What lerobot runs before and after the policy: a batch dimension and no more, since the host has the statistics."""
from lerobot.processor import AddBatchDimensionProcessorStep, DeviceProcessorStep, PolicyProcessorPipeline
from lerobot.processor.converters import policy_action_to_transition, transition_to_policy_action
from lerobot.utils.constants import POLICY_POSTPROCESSOR_DEFAULT_NAME, POLICY_PREPROCESSOR_DEFAULT_NAME


def make_vivace_pre_post_processors(config, dataset_stats=None):
    before = PolicyProcessorPipeline(steps=[AddBatchDimensionProcessorStep(), DeviceProcessorStep(device="cpu")], name=POLICY_PREPROCESSOR_DEFAULT_NAME)
    after = PolicyProcessorPipeline(steps=[DeviceProcessorStep(device="cpu")], name=POLICY_POSTPROCESSOR_DEFAULT_NAME, to_transition=policy_action_to_transition, to_output=transition_to_policy_action)
    return before, after
