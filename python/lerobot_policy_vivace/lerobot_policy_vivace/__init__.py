"""lerobot's policy type "vivace": importing this registers it, as lerobot does by itself for packages of this name."""
from lerobot_policy_vivace.configuration_vivace import VivaceConfig
from lerobot_policy_vivace.modeling_vivace import VivacePolicy
from lerobot_policy_vivace.processor_vivace import make_vivace_pre_post_processors

__all__ = ["VivaceConfig", "VivacePolicy", "make_vivace_pre_post_processors"]
