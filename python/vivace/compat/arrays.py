"""What the compatibility modules need of an array library: torch (any device) or NumPy, whichever the caller's
tensors are of."""
import numpy as np

from vivace.errors import InvalidDTypeError


def is_torch(x) -> bool:
    return type(x).__module__.split(".")[0] == "torch"


def check(x, name):
    if not is_torch(x) and not isinstance(x, np.ndarray):
        raise InvalidDTypeError(f"{name}: wanted a torch tensor or a NumPy array, got {type(x).__name__}")
    return x


def empty(shape, like, f32=False):
    """A new array beside `like`, of its dtype or of float32."""
    if is_torch(like):
        import torch

        return torch.empty(shape, dtype=torch.float32 if f32 else like.dtype, device=like.device)
    return np.empty(shape, np.float32 if f32 else like.dtype)


def on_host(x) -> np.ndarray:
    """Small integer arrays, for planning; waits for a GPU if they are on one."""
    return x.cpu().numpy() if is_torch(x) else np.asarray(x)


def beside(host, like):
    """A NumPy array where `like` is."""
    host = np.ascontiguousarray(host)
    if is_torch(like):
        import torch

        return torch.from_numpy(host).to(like.device)
    return host


def as_i32(x):
    if is_torch(x):
        import torch

        return x.to(torch.int32).contiguous()
    return np.ascontiguousarray(x, np.int32)


def copy_into(to, host):
    """New contents at the same address, which a captured graph has seen."""
    if is_torch(to):
        import torch

        to.copy_(torch.from_numpy(np.ascontiguousarray(host)))
    else:
        to[...] = host
