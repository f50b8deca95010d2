"""VivacePolicy: a batch's observations to the host, its chunks back as tensors."""
from collections import deque

import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.pretrained import PreTrainedPolicy
from vivace import PolicyClient

from lerobot_policy_vivace.configuration_vivace import VivaceConfig

_SEEN = "observation."


class VivacePolicy(PreTrainedPolicy):
    config_class = VivaceConfig
    name = "vivace"

    def __init__(self, config: VivaceConfig, *_, **__):
        super().__init__(config)
        self._client = PolicyClient(config.host, config.port, key=config.key, answer=config.answer_s)
        self._ahead: deque = deque()  # actions [B, dimensions] that are yet to come
        self.register_buffer("_where", torch.zeros(0), persistent=False)  # .to() moves it, and answers follow

    @classmethod
    def from_pretrained(cls, pretrained_name_or_path, *, config=None, **options):
        """Of a folder's config.json alone: weights are the host's."""
        policy = cls(config if config is not None else PreTrainedConfig.from_pretrained(pretrained_name_or_path, **options))
        return policy.eval()

    def _save_pretrained(self, save_directory) -> None:
        self.config._save_pretrained(save_directory)

    def get_optim_params(self) -> dict:
        return {}

    def forward(self, batch):
        raise NotImplementedError("vivace: a policy host does not train")

    def reset(self) -> None:
        """An episode begins: what is left of the last chunk is dropped."""
        self._ahead.clear()
        self._client.reset()

    @torch.no_grad()
    def predict_action_chunk(self, batch: dict, **kwargs) -> torch.Tensor:
        """[B, horizon, dimensions] f32 in the robot's units, of each observation of the batch. Errors: vivace.Error, as PolicyClient's."""
        if unknown := [k for k, v in kwargs.items() if v is not None and k != "noise"]:
            raise TypeError(f"predict_action_chunk: vivace takes no {', '.join(unknown)}")
        seen = {k: v for k, v in batch.items() if k.startswith(_SEEN) and isinstance(v, torch.Tensor)}
        if not seen:
            raise ValueError(f"predict_action_chunk: the batch has no '{_SEEN}...'; it has {', '.join(batch) or 'nothing'}")
        rows = {len(v) for v in seen.values()}
        if len(rows) != 1:
            raise ValueError(f"predict_action_chunk: observations of different batch sizes: {({k: len(v) for k, v in seen.items()})}")
        size, noise = rows.pop(), kwargs.get("noise")
        chunks = [self._client.infer(self._observation(seen, batch.get("task"), b) | ({"vivace": {"noise": _array(noise[b])}} if noise is not None else {}))["actions"] for b in range(size)]
        return torch.stack([torch.from_numpy(c.copy()) for c in chunks]).to(self._where.device)

    @torch.no_grad()
    def select_action(self, batch: dict, **kwargs) -> torch.Tensor:
        """The next action of the chunk at hand, [B, dimensions]; where there is none left, of a new one."""
        if not self._ahead:
            chunk = self.predict_action_chunk(batch, **kwargs)
            self._ahead.extend(chunk[:, : self.config.n_action_steps or chunk.shape[1]].transpose(0, 1))
        return self._ahead.popleft()

    def _observation(self, seen, task, b) -> dict:
        words = self.config.task if task is None else task if isinstance(task, str) else task[b]
        return {k: _array(v[b]) for k, v in seen.items()} | ({"prompt": words} if words else {})


def _array(tensor):
    return tensor.detach().to("cpu").contiguous().numpy()
