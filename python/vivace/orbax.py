"""openpi's own checkpoints (JAX, saved by Orbax) -> a folder of safetensors, as `vivace convert` does it, offline.

    vivace convert pi05_base/ folder/ --dtype bf16     # pi05_base/params holds manifest.ocdbt

Reads with tensorstore (`pip install vivace[convert]`), not with JAX. A leaf is stacked over layers; one at a time is in
memory. Statistics under assets/ are copied. What a chunk's horizon was, no checkpoint of this kind says: give it at load.
"""
from __future__ import annotations

import json
import math
import os
from pathlib import Path

import numpy as np

from vivace import files
from vivace.errors import CorruptDataError, InvalidArgumentError, LimitExceededError, UnsupportedError

MAX_ASSETS = 1000
MAX_LAYERS = 1000
# What the arrays may take in f32: tensorstore unpacks them, and makes what is not stored of a fill value, so shapes alone bound nothing.
MAX_RATIO, ALWAYS = 32, 64 << 20  # of the bytes on disk; trained weights shrink little

_TEXT, _EXPERT = "paligemma_with_expert.paligemma.model.language_model.", "paligemma_with_expert.gemma_expert.model."
_VISION, _GEMMA = "paligemma_with_expert.paligemma.model.vision_tower.vision_model.", "paligemma_with_expert.paligemma.model."
_LAYERS, _BLOCKS = "PaliGemma/llm/layers/", "PaliGemma/img/Transformer/encoderblock/"


def _turned(w):
    """[in..., out...] of a product with one of the two split into heads -> [out, in]."""
    return w.reshape(w.shape[0], -1).T


def _joined(w):
    """[heads, head, out] -> [out, in]."""
    return w.reshape(-1, w.shape[-1]).T


def _dense(leaf, name, norm=False):
    """A dense layer's two leaves."""
    return [(f"{leaf}/kernel", [(f"{name}.weight", _turned)]), (f"{leaf}/bias", [(f"{name}.bias", np.ravel)])]


def _norm(leaf, name):
    return [(f"{leaf}/scale", [(f"{name}.weight", np.ravel)]), (f"{leaf}/bias", [(f"{name}.bias", np.ravel)])]


def _gemma(suffix, tower, adaptive):
    """Leaves of one of the two Gemmas; {i} is the layer."""
    layer = tower + "layers.{i}."
    table = [
        (f"{_LAYERS}attn/q_einsum{suffix}/w", [(layer + "self_attn.q_proj.weight", lambda w: w.transpose(0, 2, 1).reshape(-1, w.shape[1]))]),
        (f"{_LAYERS}attn/kv_einsum{suffix}/w", [(layer + f"self_attn.{n}_proj.weight", lambda w, k=k: w[k].transpose(0, 2, 1).reshape(-1, w.shape[2])) for k, n in enumerate("kv")]),
        (f"{_LAYERS}attn/attn_vec_einsum{suffix}/w", [(layer + "self_attn.o_proj.weight", _joined)]),
        (f"{_LAYERS}mlp{suffix}/gating_einsum", [(layer + f"mlp.{n}_proj.weight", lambda w, k=k: w[k].T) for k, n in enumerate(("gate", "up"))]),
        (f"{_LAYERS}mlp{suffix}/linear", [(layer + "mlp.down_proj.weight", np.transpose)]),
    ]
    for leaf, name in ((f"{_LAYERS}pre_attention_norm{suffix}", layer + "input_layernorm"), (f"{_LAYERS}pre_ffw_norm{suffix}", layer + "post_attention_layernorm"), (f"PaliGemma/llm/final_norm{suffix}", tower + "norm")):
        table += _dense(f"{leaf}/Dense_0", f"{name}.dense") if adaptive else [(f"{leaf}/scale", [(f"{name}.weight", np.ravel)])]
    return table


_FLOW_ENDS = {"pi05": ("time_mlp_in", "time_mlp_out"), "pi0": ("state_proj", "action_time_mlp_in", "action_time_mlp_out")}


def _table(family: str) -> list:
    """(leaf, [(tensor, what it is of the leaf)]) of "pi05", "pi0" or "pi0fast", which is a language model and its eyes."""
    block = _VISION + "encoder.layers.{i}."
    table = [("PaliGemma/llm/embedder/input_embedding", [("paligemma_with_expert.paligemma.lm_head.weight", lambda w: w)]),
             ("PaliGemma/img/embedding/kernel", [(_VISION + "embeddings.patch_embedding.weight", lambda w: w.transpose(3, 2, 0, 1))]),
             ("PaliGemma/img/embedding/bias", [(_VISION + "embeddings.patch_embedding.bias", np.ravel)]),
             ("PaliGemma/img/pos_embedding", [(_VISION + "embeddings.position_embedding.weight", lambda w: w[0])])]
    table += _gemma("", _TEXT, False)
    for k in (0, 1):
        table += _norm(f"{_BLOCKS}LayerNorm_{k}", f"{block}layer_norm{k + 1}") + _dense(f"{_BLOCKS}MlpBlock_0/Dense_{k}", f"{block}mlp.fc{k + 1}")
    for leaf, name in (("query", "q"), ("key", "k"), ("value", "v")):
        table += _dense(f"{_BLOCKS}MultiHeadDotProductAttention_0/{leaf}", f"{block}self_attn.{name}_proj")
    out = f"{_BLOCKS}MultiHeadDotProductAttention_0/out"
    table += [(f"{out}/kernel", [(f"{block}self_attn.out_proj.weight", _joined)]), (f"{out}/bias", [(f"{block}self_attn.out_proj.bias", np.ravel)])]
    table += _norm("PaliGemma/img/Transformer/encoder_norm", _VISION + "post_layernorm") + _dense("PaliGemma/img/head", _GEMMA + "multi_modal_projector.linear")
    if family in _FLOW_ENDS:
        table += _gemma("_1", _EXPERT, family == "pi05")
        for name in ("action_in_proj", "action_out_proj", *_FLOW_ENDS[family]):
            table += _dense(name, name)
    return table


def _family(arrays) -> str | None:
    """Whose leaves these are; None: of no policy known here."""
    for family, proof in (("pi05", "time_mlp_in/kernel"), ("pi0", "state_proj/kernel"), ("pi0fast", "PaliGemma/llm/embedder/input_embedding")):
        if proof in arrays:
            return None if family == "pi0fast" and f"{_LAYERS}attn/q_einsum_1/w" in arrays else family  # an expert and no proof: a flow that lacks something
    return None


def folder_of(source: Path) -> Path | None:
    """Where the parameters of an Orbax checkpoint are; None: it is none."""
    return next((f for f in (source, source / "params") if (f / "manifest.ocdbt").is_file()), None)


class _Tree:
    """The leaves of a checkpoint by path, read when asked for; the last one is kept."""

    def __init__(self, folder: Path):
        try:
            import tensorstore
        except ImportError:
            raise UnsupportedError(f"{folder}: reading Orbax checkpoints needs tensorstore; pip install vivace[convert]") from None
        self._store, self._folder, self._kept = tensorstore, folder, (None, None)
        base = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{folder.resolve()}/"}}  # no URL: any name will do
        try:
            keys = [k.decode() for k in tensorstore.KvStore.open(base).result().list().result()]
            arrays = {}
            for end, driver in (("/.zarray", "zarr"), ("/zarr.json", "zarr3")):
                for key in keys:
                    if key.endswith(end):
                        name = key[: -len(end)]
                        arrays[self._path(name)] = tensorstore.open({"driver": driver, "kvstore": {**base, "path": name}}, open=True, read=True)
            self.arrays = {name: future.result() for name, future in arrays.items()}
        except (ValueError, UnicodeDecodeError) as e:
            raise CorruptDataError(f"{folder}: tensorstore refuses it: {str(e)[:300]}") from None
        if not self.arrays:
            raise CorruptDataError(f"{folder}: it holds no array")

    @staticmethod
    def _path(name: str) -> str:
        """"params.PaliGemma.img.head.bias.value" -> "PaliGemma/img/head/bias"."""
        parts = name.strip("/").replace("/", ".").split(".")
        return "/".join(parts[parts[0] == "params" : len(parts) - (parts[-1] == "value")])

    def shape(self, leaf: str) -> tuple:
        return tuple(self.arrays[leaf].shape)

    def read(self, leaf: str) -> np.ndarray:
        if self._kept[0] != leaf:
            self._kept = (None, None)
            try:
                self._kept = (leaf, np.asarray(self.arrays[leaf].read().result()))
            except ValueError as e:
                raise CorruptDataError(f"{self._folder}: {leaf}: {str(e)[:300]}") from None
        return self._kept[1]


class _Part:
    """A tensor to be written: a layer of a leaf, turned."""

    def __init__(self, tree: _Tree, leaf: str, layer: int | None, turn):
        self._tree, self._leaf, self._layer, self._turn = tree, leaf, layer, turn
        shape = tree.shape(leaf)
        self.shape = turn(np.broadcast_to(np.zeros((), np.uint8), shape if layer is None else shape[1:])).shape
        self.ndim, self.size = len(self.shape), math.prod(self.shape)

    def __array__(self, dtype=None, copy=None):
        w = self._tree.read(self._leaf)
        return np.ascontiguousarray(self._turn(w if self._layer is None else w[self._layer]), np.float32)


def _config(tree: _Tree, family: str) -> dict:
    """The shapes, as config.json of a policy says them."""
    def tower(suffix):
        _, heads, width, head = tree.shape(f"{_LAYERS}attn/q_einsum{suffix}/w")
        layers, _, kv_heads, _, _ = tree.shape(f"{_LAYERS}attn/kv_einsum{suffix}/w")
        return {"width": width, "depth": layers, "mlp_dim": tree.shape(f"{_LAYERS}mlp{suffix}/linear")[1], "num_heads": heads, "num_kv_heads": kv_heads, "head_dim": head}

    patch, _, _, width = tree.shape("PaliGemma/img/embedding/kernel")
    layers, _, heads, _ = tree.shape(f"{_BLOCKS}MultiHeadDotProductAttention_0/query/kernel")
    side = math.isqrt(tree.shape("PaliGemma/img/pos_embedding")[1])
    vision = {"width": width, "depth": layers, "mlp_dim": tree.shape(f"{_BLOCKS}MlpBlock_0/Dense_0/kernel")[2], "num_heads": heads, "image_size": side * patch, "patch_size": patch}
    flow = {"expert": tower("_1"), "action_dim": tree.shape("action_in_proj/kernel")[0]} if family in _FLOW_ENDS else {}
    return {"family": family, "text": tower(""), "vision": vision, **flow}


def _check_sizes(folder: Path, tree: _Tree, table: list) -> None:
    """Refuses arrays out of proportion to the files that hold them, before any is read."""
    wanted = 4 * sum(math.prod(tree.shape(leaf)) for leaf, _ in table)
    there = sum(min(s.st_size, s.st_blocks * 512) for base, _, names in os.walk(folder) for n in names for s in [os.lstat(os.path.join(base, n))])
    if wanted > MAX_RATIO * there + ALWAYS:
        raise CorruptDataError(f"{folder}: its arrays would take {wanted} bytes, its files hold {there}")
    for leaf, parts in table:
        shape = tree.shape(leaf)
        if "{i}" in parts[0][0] and shape and shape[0] > MAX_LAYERS:
            raise CorruptDataError(f"{folder}: {leaf}: {shape[0]} layers, at most {MAX_LAYERS} are read")


def convert(source: Path, target: Path, dtype: str) -> dict:
    """Writes `target` from the checkpoint at `source`; returns {"tensors", "bytes"}."""
    from vivace.convert import PLAIN, write_safetensors

    dtype = "bf16" if dtype == "auto" else dtype
    if dtype not in PLAIN:
        raise InvalidArgumentError(f"dtype: wanted one of {', '.join(PLAIN)} from Orbax, got {dtype!r}")
    folder = folder_of(source)
    tree = _Tree(folder)
    family = _family(tree.arrays)
    if family is None:
        raise UnsupportedError(f"{folder}: wanted the parameters of pi0.5, pi0 or pi0-FAST; neither time_mlp_in nor state_proj nor PaliGemma's embedding is there")
    table = _table(family)
    wanted = {leaf for leaf, _ in table}
    if missing := sorted(wanted - set(tree.arrays)):
        raise CorruptDataError(f"{folder}: {len(missing)} arrays are missing, {missing[0]} first")
    if extra := sorted(set(tree.arrays) - wanted):
        raise UnsupportedError(f"{folder}: {len(extra)} arrays of no policy known here, {extra[0]} first")
    _check_sizes(folder, tree, table)
    tensors = {}
    try:
        config = _config(tree, family)
        for leaf, parts in table:
            stacked = "{i}" in parts[0][0]
            for i in range(tree.shape(leaf)[0]) if stacked else (None,):
                for name, turn in parts:
                    tensors[name.replace("{i}", str(i))] = _Part(tree, leaf, i, turn)
    except (ValueError, IndexError) as e:
        raise CorruptDataError(f"{folder}: an array has other axes than openpi gives it: {e}") from None
    with files.new_folder(target) as whole:
        facts = write_safetensors(whole / "model.safetensors", tensors, dtype)
        (whole / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        for place in sorted({source, folder.parent}):
            _copy_assets(place, whole)
    return facts


def _copy_assets(source: Path, target: Path) -> None:
    """Files below assets/: a few statistics."""
    found = 0
    for base, folders, names in os.walk(source / "assets"):
        for name in sorted(folders + names):
            inner = (Path(base) / name).relative_to(source)
            if (found := found + 1) > MAX_ASSETS or len(inner.parts) > 16:
                raise LimitExceededError(f"{source}/assets: more than {MAX_ASSETS} files, or deeper than 16 folders")
            if name in folders and not (source / inner).is_symlink():
                continue
            data = files.read_own(source, str(inner))
            (target / inner).parent.mkdir(parents=True, exist_ok=True)
            (target / inner).write_bytes(data)
