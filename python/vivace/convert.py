"""Checkpoints from one format to another: hub folders (safetensors) to GGUF and back, or to quantized hub folders.

    vivace convert SmolLM2/ smollm2.gguf --dtype q4_1
    vivace convert smollm2.gguf folder/ --dtype bf16
    vivace convert Qwen3-8B/ folder/ --dtype e2m1
    vivace convert whisper-tiny.en/ folder/          # of CTranslate2: see ct2.py
    vivace convert pi05_base/ folder/                # of openpi, saved by Orbax: see orbax.py

Names and layouts come from the engine's own weight tables, files are read by its strict readers. Matrices get
`dtype`; vectors, routers and learned positions stay f32. What the target format cannot say is refused.
"""
from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from vivace import _core, ct2, files, ops, orbax, view
from vivace.blocks import SIZES
from vivace.errors import CorruptDataError, InvalidArgumentError, InvalidShapeError, NotFoundError, UnsupportedError
from vivace.gguf import write_gguf
from vivace.options import one
from vivace.options import path as path_text

PLAIN = {"f32": "F32", "f16": "F16", "bf16": "BF16"}
GGUF_DTYPES = (*PLAIN, *SIZES)
_BLOCK = 128  # rows and columns that share a scale of e4m3
_MICRO = 16   # columns that share a scale of e2m1
# What config.json says of matrices that are not plain.
_SCHEMES = {"e4m3": {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [_BLOCK, _BLOCK]},
            "e2m1": {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": _MICRO, "ignore": ["lm_head"]}}

# config.json's key -> GGUF's, below "<architecture>."; absent ones are left out.
_KEYS = {"num_hidden_layers": "block_count", "hidden_size": "embedding_length", "num_attention_heads": "attention.head_count",
         "num_key_value_heads": "attention.head_count_kv", "head_dim": "attention.key_length", "intermediate_size": "feed_forward_length",
         "max_position_embeddings": "context_length", "rms_norm_eps": "attention.layer_norm_rms_epsilon", "sliding_window": "attention.sliding_window",
         "num_experts": "expert_count", "num_local_experts": "expert_count", "num_experts_per_tok": "expert_used_count",
         "moe_intermediate_size": "expert_feed_forward_length", "n_layer": "block_count", "n_embd": "embedding_length",
         "n_head": "attention.head_count", "n_inner": "feed_forward_length", "n_positions": "context_length",
         "layer_norm_epsilon": "attention.layer_norm_epsilon"}
# What a quantized hub folder takes along from the one it is made of.
_BESIDE = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt",
           "generation_config.json", "chat_template.jinja", "chat_template.json")
_ONE_FAMILY = {"sliding_window": ("gemma3",), "num_experts": ("qwen3_moe",), "moe_intermediate_size": ("qwen3_moe",), "num_local_experts": ("mixtral",)}
_MODEL_TYPES = {"gemma3": "gemma3_text"}
_EXTRA = {"gemma3": {"hidden_activation": "gelu_pytorch_tanh"}, "gpt2": {"activation_function": "gelu_new"}, "qwen3_moe": {"norm_topk_prob": True}}


def convert(source, target, *, dtype: str = "auto") -> dict:
    """Writes `target` (a .gguf file or a folder) from `source` (a hub folder, .safetensors, .gguf, or a
    folder of CTranslate2 with a Whisper model, or of Orbax with pi0.5, pi0 or pi0-FAST). dtype: q8_0 for GGUF and bf16 for a folder unless given (f16 from CTranslate2). `source`
    may be the name of a fetched model. `target` is there whole or not at all. Returns {"tensors", "bytes"}."""
    from vivace.model import resolve

    source, target = Path(resolve(source)), Path(one("convert", "target", path_text, target))
    if file := ct2.file_of(source):
        _must_be_new(target, folder=True)
        return ct2.convert(file, target, dtype)
    if orbax.folder_of(source):
        _must_be_new(target, folder=True)
        return orbax.convert(source, target, dtype)
    to_gguf = target.suffix == ".gguf"
    dtype = ("q8_0" if to_gguf else "bf16") if dtype == "auto" else dtype
    allowed = GGUF_DTYPES if to_gguf else (*PLAIN, "e4m3", "e2m1")
    if dtype not in allowed:
        raise InvalidArgumentError(f"dtype: wanted one of {', '.join(allowed)} for {'a GGUF file' if to_gguf else 'safetensors'}, got {dtype!r}")
    _must_be_new(target, folder=not to_gguf)
    meta = _core.read_metadata(str(source))
    quantize = "general.architecture" not in meta and dtype in _SCHEMES
    if not quantize and ("general.architecture" in meta) == to_gguf:
        raise UnsupportedError(f"{source}: only safetensors to GGUF, GGUF to safetensors, and safetensors to safetensors of {' or '.join(_SCHEMES)} are converted")
    _core.check_decoder(str(source))  # what no load takes is not converted either
    entries = _core.read_tensors(str(source))
    if quantize:
        return _quantize_hub(source, target, entries, dtype)
    return _to_gguf(source, target, entries, dtype) if to_gguf else _to_hub(source, target, entries, meta, dtype)


def count_of(values: dict, key: str, file) -> int:
    """A positive number of things."""
    n = values.get(key)
    if type(n) is not int or not 0 < n < 1 << 31:
        raise CorruptDataError(f"{file}: {key}: wanted a positive number, got {files.printable(repr(n), 60)}")
    return n


def number_of(values: dict, key: str, file, default: float | None = None) -> float:
    n = values.get(key, default)
    if type(n) not in (int, float) or not 0 < abs(n) < 3e38:
        raise CorruptDataError(f"{file}: {key}: wanted a number, got {files.printable(repr(n), 60)}")
    return float(n)


def table_of(values: dict, key: str, file) -> dict:
    """An object of JSON; {} where there is none."""
    t = values.get(key)
    if not (t is None or isinstance(t, dict)):
        raise CorruptDataError(f"{file}: {key}: wanted an object, got {files.printable(repr(t), 60)}")
    return dict(t or {})


def _must_be_new(target: Path, folder: bool) -> None:
    if target.exists() and not (folder and target.is_dir() and not any(target.iterdir())):
        raise InvalidArgumentError(f"{target}: it exists; name a new file or an empty folder")


class _Tensors:
    """The tensors of a checkpoint as f32 arrays, read when asked for."""

    def __init__(self, entries):
        self.entries = {e[0]: e[1:] for e in entries}

    def __contains__(self, name):
        return name in self.entries

    def __getitem__(self, name) -> np.ndarray:
        if name not in self.entries:
            raise NotFoundError(f"tensor {name} is missing; the checkpoint is incomplete or of another family")
        dtype, shape, file, offset, size = self.entries[name]
        raw = np.memmap(file, np.uint8, "r", offset, (size,)) if size else np.zeros(0, np.uint8)
        if dtype == "u8" and name + "_scale_2" in self:
            return self._fp4(name, raw, shape)
        out = _widen(raw, dtype, shape)
        if dtype == "e4m3":
            scales = next((name + end for end in ("_scale_inv", "_scale") if name + end in self), None)
            if scales is None:
                raise UnsupportedError(f"tensor {name} is e4m3 without scales in {name}_scale or {name}_scale_inv; convert what it was made of")
            out *= _spread(scales, self[scales], shape)
        return out

    def _fp4(self, name, codes, shape):
        rows, columns = shape[0], 2 * shape[1]
        _, scale_shape, file, offset, size = self.entries[name + "_scale"]
        if list(scale_shape) != [rows, columns // _MICRO]:
            raise InvalidShapeError(f"tensor {name}_scale: wanted {[rows, columns // _MICRO]}, got {list(scale_shape)}")
        out, scales = np.empty((rows, columns), np.float32), np.array(np.memmap(file, np.uint8, "r", offset, (size,)))
        ops.dequantize_block_scaled(x=np.array(codes).reshape(shape), scales=view(scales, dtype="e4m3", shape=(size,)),
                             tensor_scale=self[name + "_scale_2"].reshape(1), out=out)
        return out


def _spread(name, scales: np.ndarray, shape) -> np.ndarray:
    """One value of all, a value for each row or one for each block of 128 x 128 -> what multiplies the matrix."""
    rows, blocks = (shape[0],), tuple(-(-n // _BLOCK) for n in shape)
    if scales.size == 1 or scales.shape in (rows, (*rows, 1)):
        return scales.reshape(-1, 1)
    if scales.shape != blocks:
        raise InvalidShapeError(f"tensor {name}: wanted [1], {[*rows, 1]} or {[*blocks]}, got {list(scales.shape)}")
    return np.repeat(np.repeat(scales, _BLOCK, 0), _BLOCK, 1)[:shape[0], :shape[1]]


def _widen(raw: np.ndarray, dtype: str, shape) -> np.ndarray:
    if dtype == "f32":
        return np.frombuffer(raw.tobytes(), "<f4").reshape(shape)
    if dtype == "f16":
        return np.frombuffer(raw.tobytes(), "<f2").astype(np.float32).reshape(shape)
    if dtype == "bf16":
        return (np.frombuffer(raw.tobytes(), "<u2").astype(np.uint32) << 16).view(np.float32).reshape(shape)
    rows = int(np.prod(shape[:-1]))
    out = np.empty((rows, shape[-1]), np.float32)
    table = view(np.array(raw), dtype=dtype, shape=(rows, shape[-1]))
    if dtype.startswith("q"):  # the engine's own definition of the block formats
        ops.embedding(table=table, ids=np.arange(rows, dtype=np.int32), out=out)
    elif dtype in ("e4m3", "e5m2"):
        ops.cast(x=table, out=out)
    else:
        raise UnsupportedError(f"dtype {dtype} is no weight that is converted")
    return out.reshape(shape)


def _permute(w: np.ndarray, heads: int, back: bool = False) -> np.ndarray:
    """Rows i and i + D/2 of each head become neighbours, as GGUF stores llama's q and k; or back."""
    half = (-1, 2) if back else (2, -1)
    return w.reshape(heads, *half, *w.shape[1:]).swapaxes(1, 2).reshape(w.shape)


def _layout(family, gguf_name, w, config, back=False):
    """GGUF's way of storing what hub files store plainly: interleaved heads, whole norm weights."""
    if family["interleaved"] and gguf_name.endswith(("attn_q.weight", "attn_k.weight")):
        heads = config["num_attention_heads"]
        w = _permute(w, heads if "attn_q." in gguf_name else config.get("num_key_value_heads", heads), back)
    if family["plus_one"] and gguf_name.endswith("norm.weight"):
        w = w - 1 if back else w + 1
    return w


def _names(family, layers):
    """(GGUF name, hub name, hub_transposed) of every weight; "{e}" stays."""
    for gguf, hub, transposed in family["weights"]:
        for i in range(layers) if "{}" in gguf else (None,):
            yield (gguf.replace("{}", str(i)), hub.replace("{}", str(i)), transposed) if i is not None else (gguf, hub, transposed)


# ---- hub -> GGUF -----------------------------------------------------------------------------------

def _hub_family(source):
    file = (source if source.is_dir() else source.parent) / "config.json"
    config = files.read_json(file)
    names = config.get("architectures")
    arch = names[0] if isinstance(names, list) and names else None
    family = _core.decoder_family(files.printable(str(arch)))
    if family is None:
        raise UnsupportedError(f"{file}: architecture {files.printable(repr(arch), 60)} is no decoder family of this version")
    if family["recurrent"]:
        raise UnsupportedError(f"{file}: {family['name']} is not converted: GGUF files and quantized folders of models with recurrent layers are not written")
    return file, config, family


def _hub_names(family, config, tensors, file):
    """_names() of a hub checkpoint, with the prefix that its tensors have; a head that is tied is left out."""
    prefix = "transformer." if "transformer.wte.weight" in tensors else ""
    for gguf, hub, transposed in _names(family, count_of(config, "n_layer" if family["name"] == "gpt2" else "num_hidden_layers", file)):
        if gguf != "output.weight" or hub in tensors:
            yield gguf, hub if gguf == "output.weight" else prefix + hub, transposed


def _experts(config, file) -> int:
    return count_of(config, "num_local_experts" if "num_local_experts" in config else "num_experts", file)


def _to_gguf(source, target, entries, dtype):
    file, config, family = _hub_family(source)
    tensors, gpt2 = _Tensors(entries), family["name"] == "gpt2"
    rope, extra = _rope_metadata(config, family, file)
    out = dict(extra)
    for gguf, hub, transposed in _hub_names(family, config, tensors, file):
        if "{e}" in hub:
            w = np.stack([tensors[hub.replace("{e}", str(e))] for e in range(_experts(config, file))])
        else:
            w = tensors[hub].T if transposed else tensors[hub]
        out[gguf] = _layout(family, gguf, w, config)
    head_dim = config.get("head_dim") or count_of(config, "n_embd" if gpt2 else "hidden_size", file) // count_of(config, "n_head" if gpt2 else "num_attention_heads", file)
    meta = {"general.architecture": family["gguf"], "general.name": source.name, **_tokenizer_metadata(file.parent)}
    values = {**config, "head_dim": head_dim}
    if gpt2:
        values["n_inner"] = config.get("n_inner") or 4 * count_of(config, "n_embd", file)
    for key, gguf in _KEYS.items():
        if values.get(key) and _of_family(key, family["name"]) and (key == "head_dim" or key.startswith(("n_", "layer_norm")) == gpt2):
            meta[f"{family['gguf']}.{gguf}"] = number_of(values, key, file) if key.endswith(("_eps", "_epsilon")) else count_of(values, key, file)
    meta |= {f"{family['gguf']}.{k}": v for k, v in rope.items()}
    kinds = {n: "f32" if w.ndim < 2 or n.endswith("ffn_gate_inp.weight") or n == "position_embd.weight" else dtype for n, w in out.items()}
    return write_gguf(target, meta, out, kinds)


def _of_family(key: str, name: str) -> bool:
    return name in _ONE_FAMILY.get(key, (name,))


def _tokenizer_metadata(folder: Path) -> dict:
    """tokenizer.json whole, under GGUF's key for it, and what stands beside it. llama.cpp wants its own lists instead."""
    file, meta = folder / "tokenizer.json", {"tokenizer.ggml.model": "no_vocab"}
    if (source := files.read_optional(file)) is None:
        return meta
    from vivace.text import load_text

    text = load_text(str(folder), {})
    meta["tokenizer.huggingface.json"] = files.text_of(source, file)
    if len(text.eos) > 3:
        raise UnsupportedError(f"{folder}/generation_config.json: eos_token_id: GGUF has keys for three ids, these are {len(text.eos)}")
    ids = {"bos": text.bos, **dict(zip(("eos", "eot", "eom"), text.eos))}
    meta |= {f"tokenizer.ggml.{k}_token_id": i for k, i in ids.items() if i is not None}
    meta["tokenizer.ggml.add_bos_token"] = text.add_bos
    return meta | ({"tokenizer.chat_template": text.template} if text.template else {})


def _rope_metadata(config, family, file):
    """Keys below the architecture, and tensors, that say what config.json says about positions."""
    from math import pi

    if family["name"] == "gpt2":
        return {}, {}
    rope = table_of(config, "rope_parameters", file) or table_of(config, "rope_scaling", file)
    keys = {}
    if family["name"] == "gemma3":
        local = table_of(rope, "sliding_attention", file)
        rope = table_of(rope, "full_attention", file) or {k: v for k, v in rope.items() if k != "sliding_attention"}
        keys["rope.freq_base_swa"] = number_of(local, "rope_theta", file) if "rope_theta" in local else number_of(config, "rope_local_base_freq", file, 1e4)
        keys["attention.scale"] = abs(number_of(config, "query_pre_attn_scalar", file, 256)) ** -0.5
        keys["attention.sliding_window_pattern"] = _pattern(config, file)
    if family["name"] == "qwen3_moe" and not config.get("norm_topk_prob", False):
        raise UnsupportedError("config.json: norm_topk_prob: false has no key in GGUF")
    theta = number_of(rope, "rope_theta", file) if "rope_theta" in rope else number_of(config, "rope_theta", file, 1e6 if family["name"] == "gemma3" else 1e4)
    kind = rope.get("rope_type", rope.get("type", "default"))
    keys["rope.freq_base"] = theta
    if kind == "llama3":
        head_dim = config.get("head_dim") or count_of(config, "hidden_size", file) // count_of(config, "num_attention_heads", file)
        freq = theta ** -(np.arange(0, head_dim, 2) / head_dim)
        turns = number_of(rope, "original_max_position_embeddings", file) * freq / (2 * pi)
        low, high = number_of(rope, "low_freq_factor", file), number_of(rope, "high_freq_factor", file)
        smooth = np.clip((turns - low) / (high - low), 0, 1)
        return keys, {"rope_freqs.weight": (1 / ((1 - smooth) / number_of(rope, "factor", file) + smooth)).astype(np.float32)}
    if kind in ("linear", "yarn"):
        keys |= {"rope.scaling.type": kind, "rope.scaling.factor": number_of(rope, "factor", file)}
        if kind == "yarn":
            of, key = (rope, "original_max_position_embeddings") if "original_max_position_embeddings" in rope else (config, "max_position_embeddings")
            keys["rope.scaling.original_context_length"] = count_of(of, key, file)
        if kind == "yarn" and {"mscale", "attention_factor", "truncate"} & set(rope):
            raise UnsupportedError("config.json: rope_scaling: mscale, attention_factor and truncate of yarn have no key in GGUF")
    elif kind != "default":
        raise UnsupportedError(f"config.json: rope_scaling.rope_type: {files.printable(repr(kind), 60)} has no form in GGUF")
    return keys, {}


def _pattern(config, file) -> int:
    """n where every n-th layer is global; GGUF can say no other arrangement."""
    layers, types = count_of(config, "num_hidden_layers", file), config.get("layer_types")
    if types is None:
        return count_of({"sliding_window_pattern": 6, **config}, "sliding_window_pattern", file)
    for n in range(1, layers + 2):
        if types == ["full_attention" if (i + 1) % n == 0 else "sliding_attention" for i in range(layers)]:
            return n
    raise UnsupportedError("config.json: layer_types: GGUF can only say that every n-th layer is global")


# ---- GGUF -> hub -----------------------------------------------------------------------------------

def _to_hub(source, target, entries, meta, dtype):
    arch = meta["general.architecture"]
    family = _core.decoder_family(arch, bool(meta.get(f"{arch}.expert_count", 0)))
    if family is None:
        raise UnsupportedError(f"{source}: architecture {arch!r} is no decoder family of this version")
    if family["recurrent"]:
        raise UnsupportedError(f"{source}: {family['name']} is not converted: its layers' layout in GGUF is read by load_model alone")
    tensors = _Tensors(entries)
    config = _hub_config(meta, arch, family, tensors, source)
    layers = count_of(meta, f"{arch}.block_count", source)
    out = {}
    for gguf, hub, transposed in _names(family, layers):
        if gguf == "output.weight" and gguf not in tensors:
            continue
        w = _layout(family, gguf, tensors[gguf], config, back=True)
        if "{e}" in hub:
            out |= {hub.replace("{e}", str(e)): w[e] for e in range(len(w))}
        else:
            out[hub] = w.T if transposed else w
    if dtype in _SCHEMES:
        _declare_scheme(config, family, out, dtype)
    with files.new_folder(target) as folder:
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        if meta.get("tokenizer.ggml.tokens") or meta.get("tokenizer.huggingface.json"):
            _write_tokenizer(folder, meta)
        return write_safetensors(folder / "model.safetensors", out, dtype)


def _declare_scheme(config, family, tensors, dtype) -> None:
    if family["name"] == "gpt2":
        raise UnsupportedError(f"dtype: gpt2 stores its products transposed, which {dtype} with block scales is not read for; choose bf16")
    for name, w in tensors.items():
        if dtype == "e2m1" and _is_fp4(name, w) and w.shape[1] % _MICRO:
            raise UnsupportedError(f"dtype: e2m1 has a scale for each {_MICRO} columns, which {w.shape[1]} of {name} does not divide into; choose e4m3")
    config["quantization_config"] = _SCHEMES[dtype]


# ---- hub -> quantized hub --------------------------------------------------------------------------

def _quantize_hub(source, target, entries, dtype):
    file, config, family = _hub_family(source)
    tensors = _Tensors(entries)
    out = {}
    for _, hub, _ in _hub_names(family, config, tensors, file):
        out |= {n: tensors[n] for n in ([hub.replace("{e}", str(e)) for e in range(_experts(config, file))] if "{e}" in hub else [hub])}
    _declare_scheme(config, family, out, dtype)
    with files.new_folder(target) as folder:
        for name in _BESIDE:
            if (data := files.read_own(file.parent, name)) is not None:
                (folder / name).write_bytes(data)
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
        return write_safetensors(folder / "model.safetensors", out, dtype)


def _hub_config(meta, arch, family, tensors, source) -> dict:
    name = family["name"]
    config = {"architectures": [family["hub"]], "model_type": _MODEL_TYPES.get(name, name)}
    for key, gguf in _KEYS.items():
        if (key.startswith(("n_", "layer_norm"))) == (name == "gpt2") and _of_family(key, name) and f"{arch}.{gguf}" in meta:
            value = meta[f"{arch}.{gguf}"]
            config[key] = float(str(np.float32(number_of(meta, f"{arch}.{gguf}", source)))) if isinstance(value, float) else count_of(meta, f"{arch}.{gguf}", source)
    config |= {"vocab_size": tensors.entries["token_embd.weight"][1][0], "tie_word_embeddings": "output.weight" not in tensors, **_EXTRA.get(name, {})}
    if name == "gpt2":
        return config
    number = lambda key, default: number_of(meta, f"{arch}.{key}", source, default)  # noqa: E731
    config["rope_theta"] = number("rope.freq_base", 1e6 if name == "gemma3" else 1e4)
    kind = meta.get(f"{arch}.rope.scaling.type", "none")
    if kind in ("linear", "yarn"):
        config["rope_scaling"] = {"rope_type": kind, "factor": number("rope.scaling.factor", None)}
        if kind == "yarn":
            config["rope_scaling"]["original_max_position_embeddings"] = count_of(meta, f"{arch}.rope.scaling.original_context_length", source)
    elif kind != "none":
        raise UnsupportedError(f"{arch}.rope.scaling.type: {files.printable(repr(kind), 60)} is not converted")
    if "rope_freqs.weight" in tensors:
        raise UnsupportedError("rope_freqs.weight: its llama3 parameters cannot be told from the tensor; convert from the original hub folder")
    if name == "gemma3":
        scale = f"{arch}.attention.scale" in meta
        config |= {"rope_local_base_freq": number("rope.freq_base_swa", 1e4), "sliding_window_pattern": meta.get(f"{arch}.attention.sliding_window_pattern", 6),
                   "query_pre_attn_scalar": round(number("attention.scale", None) ** -2, 3) if scale else meta.get(f"{arch}.attention.key_length", 256)}
    return config


def _write_tokenizer(target: Path, meta: dict) -> None:
    from vivace.text import load_text

    text = load_text("", meta)
    text.tokenizer.save(str(target / "tokenizer.json"))
    name = lambda i: None if i is None else text.tokenizer.id_to_token(i)  # noqa: E731
    config = {"bos_token": name(text.bos), "eos_token": name(text.eos[0] if text.eos else None), "add_bos_token": text.add_bos, "chat_template": text.template}
    (target / "tokenizer_config.json").write_text(json.dumps({k: v for k, v in config.items() if v is not None}, indent=1) + "\n")
    (target / "generation_config.json").write_text(json.dumps({"eos_token_id": text.eos}) + "\n")


def narrow(w: np.ndarray, dtype: str) -> np.ndarray:
    """f32 -> the bytes of a plain dtype, rounded to nearest even."""
    w = np.ascontiguousarray(w, np.float32)
    if dtype != "bf16":
        return w.astype({"f32": "<f4", "f16": "<f2"}[dtype])
    u = w.view(np.uint32)
    rounded = (u.astype(np.uint64) + 0x7FFF + (u >> 16 & 1)) >> 16
    return np.where(np.isnan(w), u >> 16 | 0x40, rounded).astype("<u2")


def _e4m3(w: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A matrix as codes and a scale for each block, the largest of a block at e4m3's largest."""
    rows, columns = (-(-n // _BLOCK) for n in w.shape)
    padded = np.zeros((rows * _BLOCK, columns * _BLOCK), np.float32)
    padded[:w.shape[0], :w.shape[1]] = np.abs(w)
    scales = padded.reshape(rows, _BLOCK, columns, _BLOCK).max((1, 3)) / np.float32(448)
    scales[scales == 0] = 1
    codes = np.empty(w.shape, np.uint8)
    ops.cast(x=np.ascontiguousarray(w / _spread("of the blocks", scales, w.shape), np.float32), out=view(codes, dtype="e4m3", shape=w.shape))
    return codes, scales


def _is_fp4(name: str, w: np.ndarray) -> bool:
    """Projections of layers; experts stay bf16, as in the plan w4a16."""
    return w.ndim == 2 and name.endswith("_proj.weight") and ".experts." not in name


def finite(name: str, w: np.ndarray, dtype: str) -> None:
    """One NaN or infinite weight would take the others of its block with it."""
    if not np.isfinite(w).all():
        raise CorruptDataError(f"tensor {files.printable(name)}: it holds NaN or infinite values, which {dtype} cannot; choose bf16 or f32, or fetch the checkpoint again")


def _bf16(w: np.ndarray) -> np.ndarray:
    return (narrow(w, "bf16").astype(np.uint32) << 16).view(np.float32)


_JOINED = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}


def _shared_scales(tensors: dict) -> dict:
    """FP4 matrix -> its f32 scale. Those that become one product, q, k and v, gate and up, share one, as w4a16 makes it while loading."""
    def group(name):
        path, projection, _ = name.rsplit(".", 2)
        return path, _JOINED.get(projection, projection)

    largest = {}
    names = [n for n, w in tensors.items() if _is_fp4(n, w)]
    for n in names:
        largest[group(n)] = max(largest.get(group(n), np.float32(0)), np.abs(_bf16(tensors[n])).max())
    return {n: np.float32(m / np.float32(6 * 448) if (m := largest[group(n)]) > 0 else 1) for n in names}


def _e2m1(w: np.ndarray, whole: np.float32) -> tuple[np.ndarray, np.ndarray]:
    """A matrix as FP4 codes, two a byte, and e4m3 scales: of its bf16 values, as w4a16 makes them."""
    codes, scales = np.empty((w.shape[0], w.shape[1] // 2), np.uint8), np.empty((w.shape[0], w.shape[1] // _MICRO), np.uint8)
    ops.quantize_block_scaled(x=_bf16(w), out=codes, scales=view(scales, dtype="e4m3", shape=(scales.size,)), tensor_scale=np.full(1, whole, np.float32))
    return codes, scales


def write_safetensors(path: Path, tensors: dict, dtype: str) -> dict:
    """Matrices get `dtype`, all else f32; of e4m3 and e2m1 the projections alone, with their scales, and other matrices bf16."""
    header, at, parts = {"__metadata__": {"format": "pt"}}, 0, []

    def put(name, kind, shape, size, data):
        nonlocal at
        header[name] = {"dtype": kind, "shape": list(shape), "data_offsets": [at, at + size]}
        parts.append(data)
        at += size

    for name, w in tensors.items():
        if dtype in _SCHEMES and w.ndim == 2 and name.endswith("_proj.weight"):
            finite(name, w, dtype)
    shared = _shared_scales(tensors) if dtype == "e2m1" else {}
    for name, w in tensors.items():
        if name in shared:  # ModelOpt's names
            codes, scales = _e2m1(w, shared[name])
            put(name, "U8", codes.shape, codes.nbytes, lambda codes=codes: codes)
            put(name + "_scale", "F8_E4M3", scales.shape, scales.nbytes, lambda scales=scales: scales)
            put(name + "_scale_2", "F32", (), 4, lambda whole=shared[name]: whole)
        elif dtype == "e4m3" and w.ndim == 2 and name.endswith("_proj.weight"):
            codes, scales = _e4m3(w)
            put(name, "F8_E4M3", w.shape, codes.nbytes, lambda codes=codes: codes)
            put(name + "_scale_inv", "F32", scales.shape, scales.nbytes, lambda scales=scales: scales)
        else:
            kind = "f32" if w.ndim < 2 else "bf16" if dtype in _SCHEMES else dtype
            put(name, PLAIN[kind], w.shape, w.size * (4 if kind == "f32" else 2), lambda w=w, kind=kind: narrow(w, kind))
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as f:
        f.write(len(text).to_bytes(8, "little") + text)
        for data in parts:
            f.write(data().tobytes())
    return {"tensors": len(header) - 1, "bytes": path.stat().st_size}
