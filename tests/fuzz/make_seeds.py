"""Writes the hand-made part of the corpus: one small valid file per feature. Run from the repository root."""
import json
import pathlib
import struct

ROOT = pathlib.Path(__file__).parent / "corpus"


def put(target, name, data):
    folder = ROOT / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def text(s):
    return struct.pack("<Q", len(s)) + s.encode()


def pair(key, kind, payload):
    return text(key) + struct.pack("<I", kind) + payload


def gguf(pairs, tensors, version=3, align=32):
    """tensors: (name, innermost-first dims, ggml type id, bytes)."""
    infos, data = b"", b""
    for name, dims, kind, size in tensors:
        infos += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, kind, len(data))
        data += bytes(size) + bytes(-size % align)
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs)) + b"".join(pairs) + infos
    return head + bytes(-len(head) % align) + data


def safetensors(tensors, metadata=None, pad=0):
    """tensors: (name, dtype, shape, bytes)."""
    header, at = {}, 0
    if metadata is not None:
        header["__metadata__"] = metadata
    for name, dtype, shape, size in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}
        at += size
    blob = json.dumps(header).encode() + b" " * pad
    return struct.pack("<Q", len(blob)) + blob + bytes(at)


def model_seeds():
    """config.json of every fixture behind the number of its folder, and a GGUF model of 2.4 KB behind the next."""
    beside = ["llama", "llama_untied", "qwen2", "qwen3_yarn", "gemma3", "gemma3_params", "mixtral", "qwen3_moe", "gpt2"]
    for i, name in enumerate(beside):
        put("fuzz_model", name, bytes([i]) + (ROOT.parents[1] / "fixtures/tiny" / name / "config.json").read_bytes())
    u32 = lambda key, value: pair(key, 4, struct.pack("<I", value))  # noqa: E731
    keys = [pair("general.architecture", 8, text("llama")), u32("llama.block_count", 1), u32("llama.embedding_length", 8), u32("llama.attention.head_count", 2),
            u32("llama.attention.head_count_kv", 1), u32("llama.feed_forward_length", 8), u32("llama.context_length", 16),
            pair("llama.attention.layer_norm_rms_epsilon", 6, struct.pack("<f", 1e-5)), pair("llama.rope.freq_base", 6, struct.pack("<f", 1e4))]
    layer = [("attn_norm", [8]), ("attn_q", [8, 8]), ("attn_k", [8, 4]), ("attn_v", [8, 4]), ("attn_output", [8, 8]), ("ffn_norm", [8]),
             ("ffn_gate", [8, 8]), ("ffn_up", [8, 8]), ("ffn_down", [8, 8])]
    names = [("token_embd.weight", [8, 8]), ("output_norm.weight", [8])] + [(f"blk.0.{n}.weight", d) for n, d in layer]
    tensors = [(n, d, 0, 4 * d[0] * (d[1] if len(d) > 1 else 1)) for n, d in names]
    put("fuzz_model", "gguf_llama", bytes([len(beside)]) + gguf(keys, tensors))


def main():
    scalars = [pair("a.u8", 0, b"\x01"), pair("a.i16", 3, b"\xff\xff"), pair("a.u32", 4, struct.pack("<I", 7)),
               pair("a.f32", 6, struct.pack("<f", 0.5)), pair("a.bool", 7, b"\x01"), pair("a.u64", 10, bytes(8)),
               pair("a.f64", 12, struct.pack("<d", 1e300)), pair("general.name", 8, text("tiny"))]
    arrays = [pair("t.tokens", 9, struct.pack("<IQ", 8, 3) + text("a") + text("") + text("bc")),
              pair("t.types", 9, struct.pack("<IQ2i", 5, 2, 1, -1)), pair("t.flags", 9, struct.pack("<IQ", 7, 2) + b"\0\1"),
              pair("t.scores", 9, struct.pack("<IQ2f", 6, 2, 0.0, -1.0))]
    put("fuzz_gguf", "empty", gguf([], []))
    put("fuzz_gguf", "scalars", gguf(scalars, []))
    put("fuzz_gguf", "arrays", gguf(arrays, [], version=2))
    put("fuzz_gguf", "aligned", gguf([pair("general.alignment", 4, struct.pack("<I", 64))], [("w", [4], 0, 16), ("b", [], 0, 4)], align=64))
    put("fuzz_gguf", "blocks", gguf(scalars[:1], [("q4_0", [32, 2], 2, 36), ("q4_1", [32], 3, 20), ("q8_0", [32], 8, 34), ("q6_k", [256], 14, 210),
                                                  ("bf16", [2, 3, 1, 1], 30, 12)]))
    put("fuzz_safetensors", "empty", safetensors([]))
    put("fuzz_safetensors", "two", safetensors([("a", "F32", [2, 2], 16), ("b.weight", "BF16", [3], 6)], {"format": "pt"}, pad=5))
    put("fuzz_safetensors", "zero", safetensors([("z", "F16", [0, 4], 0), ("s", "F64", [], 8), ("y", "BOOL", [1], 1)]))
    put("fuzz_safetensors", "types", safetensors([(t, t, [1], n) for t, n in (("F8_E4M3", 1), ("F8_E5M2", 1), ("I64", 8), ("I16", 2), ("U8", 1))]))
    put("fuzz_safetensors", "index", '{"metadata": {"total_size": 3}, "weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}')
    model_seeds()
    put("fuzz_json", "config", '{"architectures": ["LlamaForCausalLM"], "rope_scaling": {"factor": 8.0, "type": null}, "n": -12, "e": 1.5e-3, "ok": true}')
    put("fuzz_json", "escapes", r'["\"\\\/\b\f\n\r\t", "\u0041\u00e9\u20ac\ud83d\ude00", "é€😀", {"\u0061": 0, "b": []}]')
    put("fuzz_json", "numbers", "[0, -0, 9223372036854775807, -9223372036854775808, 9223372036854775808, 1e308, 0.1, 1E+2, 2e-2]")
    put("fuzz_json", "deep", "[" * 40 + "]" * 40)


if __name__ == "__main__":
    main()
