"""VivaceConfig: where the host is, and how much of a chunk is used."""
from dataclasses import dataclass

from lerobot.configs.policies import PreTrainedConfig


@PreTrainedConfig.register_subclass("vivace")
@dataclass
class VivaceConfig(PreTrainedConfig):
    """host, port, key: `vivace serve-policy`'s. n_action_steps: actions of a chunk that are used before the next is asked for; 0: all of them.
    task: where a batch brings none. answer_s: seconds an answer may take."""

    host: str = "127.0.0.1"
    port: int = 8000
    key: str = ""
    n_action_steps: int = 0
    task: str = ""
    answer_s: float = 60.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.n_action_steps < 0:
            raise ValueError(f"n_action_steps: wanted 0 (a whole chunk) or more, got {self.n_action_steps}")

    def validate_features(self) -> None:
        """The host knows which cameras and what state its policy has, and says what is missing."""

    @property
    def observation_delta_indices(self) -> None:
        return None

    @property
    def action_delta_indices(self) -> None:
        return None

    @property
    def reward_delta_indices(self) -> None:
        return None

    def get_optimizer_preset(self):
        raise NotImplementedError("vivace: a policy host does not train")

    def get_scheduler_preset(self):
        raise NotImplementedError("vivace: a policy host does not train")
