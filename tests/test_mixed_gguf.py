"""GGUF files whose matrices have several k-quants, as llama.cpp's mixtures do: the logits of the same file with their values in f32. On the host
or (`pytest --device cuda`) on a GPU, where q and k of one format are one product. About 5 s."""
import gguf
import numpy as np
import pytest

from bench import gguf_file
from tests.op_data import device, quantize
from tests.test_model_steps import IDS, decode, load, open_core, prefill

ON_GPU = device is not None and device.ON_GPU
H, M, V, D, HEADS, KV, LAYERS = 512, 768, 320, 64, 8, 2, 3
Q4, Q5, Q6, F32 = (gguf.GGMLQuantizationType[k] for k in ("Q4_K", "Q5_K", "Q6_K", "F32"))
SOME = [i % V for i in IDS[:40]]


def drawn(arch, kinds, seed=5):
    """{tensor's name: (stored rows, their values in f32, kind)}; `kinds` of q, k, v and down of each layer."""
    rng, out = np.random.default_rng(seed), {}

    def put(name, rows, columns, kind=Q4):
        values = (rng.standard_normal((rows, columns)) * columns**-0.5).astype(np.float32)
        if kind == F32:
            out[name] = values, values, F32
        else:
            stored = quantize(values, kind.name.lower())
            out[name] = stored, gguf.quants.dequantize(stored, kind).astype(np.float32), kind

    def vector(name, n, mean=1.0):
        values = (mean + 0.1 * rng.standard_normal(n)).astype(np.float32)
        out[name] = values, values, F32

    put("token_embd.weight", V, H)
    vector("output_norm.weight", H)
    put("output.weight", V, H, Q6)
    for i in range(LAYERS):
        q, k, v, down = kinds
        at = f"blk.{i}."
        for name, rows, kind in (("attn_q", HEADS * D, q), ("attn_k", KV * D, k), ("attn_v", KV * D, v)):
            put(at + name + ".weight", rows, H, kind)
            if arch == "qwen2":
                vector(at + name + ".bias", rows, 0.0)
        put(at + "attn_output.weight", H, HEADS * D)
        put(at + "ffn_gate.weight", M, H)
        put(at + "ffn_up.weight", M, H)
        put(at + "ffn_down.weight", H, M, down)
        for name in ("attn_norm", "ffn_norm"):
            vector(at + name + ".weight", H)
        if arch == "qwen3":
            for name in ("attn_q_norm", "attn_k_norm"):
                vector(at + name + ".weight", D)
    return out


CONFIG = {"num_hidden_layers": LAYERS, "max_position_embeddings": 256, "hidden_size": H, "intermediate_size": M, "num_attention_heads": HEADS, "num_key_value_heads": KV, "head_dim": D, "rms_norm_eps": 1e-6,
          "rope_theta": 1e4, "vocab_size": V}


def write(path, arch, tensors, plain):
    w = gguf_file.writer(path, arch, CONFIG)
    for name, (stored, values, kind) in tensors.items():
        if plain or kind == F32:
            w.add_tensor(name, values)
        else:
            w.add_tensor(name, stored, raw_dtype=kind)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    return path


MIXTURES = {"values and downs have more bits": (Q4, Q4, Q6, Q6), "all apart": (Q4, Q5, Q6, Q4), "keys and values": (Q4, Q6, Q6, Q5), "five bits": (Q5, Q5, Q6, Q6), "one": (Q4, Q4, Q4, Q4)}


@pytest.mark.parametrize("arch", ["qwen3", "qwen2"])
@pytest.mark.parametrize("mixture", MIXTURES)
def test_the_values_of_the_file(tmp_path, arch, mixture):
    tensors = drawn(arch, MIXTURES[mixture])
    mixed, plain = (write(tmp_path / f"{p}.gguf", arch, tensors, p) for p in (False, True))
    one, other = (open_core(p, "f32", max_batch=4) for p in (mixed, plain))
    for got, want in ((decode(one, SOME, 4), decode(other, SOME, 4)), (prefill(one, SOME, [24, 16]), prefill(other, SOME, [24, 16]))):
        assert np.linalg.norm(got - want) < 1e-5 * np.linalg.norm(want)
    want, got = decode(other, SOME, 4), decode(open_core(mixed, "native", max_batch=4), SOME, 4)
    assert np.linalg.norm(got - want) < 0.05 * np.linalg.norm(want)  # rows of 16 bits: 0.8 to 3.2 % on the host


@pytest.mark.skipif(not ON_GPU, reason="the host's blocks stay where they are mapped")
def test_q_and_k_are_one_product(tmp_path):
    """Of a layer whose v has another format: a launch less than with three."""
    reports = {}
    for mixture, kinds in MIXTURES.items():
        with load(write(tmp_path / "m.gguf", "qwen3", drawn("qwen3", kinds), False), "native") as model:
            reports[mixture] = model.report()
    launches = {mixture: r["launches"] for mixture, r in reports.items()}
    assert launches["all apart"] - launches["five bits"] == launches["five bits"] - launches["one"] == LAYERS
    assert launches["keys and values"] == launches["all apart"]
    assert reports["five bits"]["forms"]["layers"]["qkv"] == "q5_k, q6_k" and reports["one"]["forms"]["layers"]["qkv"] == "q4_k"


def test_the_file_that_is_timed(tmp_path):
    """Q4_K_M's mixture: of eight layers the first, the last and every third between have more bits."""
    config = CONFIG | {"num_hidden_layers": 8}
    read = gguf_file.write(tmp_path / "m.gguf", config)
    kinds = {t.name: t.tensor_type for t in gguf.GGUFReader(tmp_path / "m.gguf").tensors}
    assert [i for i in range(8) if kinds[f"blk.{i}.attn_v.weight"] == kinds[f"blk.{i}.ffn_down.weight"] == Q6] == [0, 3, 6, 7]
    assert read == (tmp_path / "m.gguf").stat().st_size - gguf_file.bytes_of(Q4, (V, H)) - gguf.GGUFReader(tmp_path / "m.gguf").data_offset
    with load(tmp_path / "m.gguf", "native") as model:
        assert model.report()["forms"]["head"] == "q6_k" and len(model.generate_ids(SOME, max_tokens=4).tokens) == 4
