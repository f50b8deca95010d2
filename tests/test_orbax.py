"""openpi's checkpoints as Orbax writes them -> safetensors. The tree is a tiny policy's, whose weights the reference converted
from such a tree itself (pi0-FAST's has lerobot's names for the same leaves); here it is put back together and written by
tensorstore, as Orbax does."""
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

import vivace
from vivace import orbax
from vivace.convert import convert

FIXTURES = Path(__file__).parent / "fixtures/vla"
SIGLIP, TEXT, EXPERT = "paligemma_with_expert.paligemma.model.vision_tower.", "paligemma_with_expert.paligemma.model.language_model.", "paligemma_with_expert.gemma_expert.model."


def weights_of(name):
    """The fixture's tensors under the names that hub files have."""
    all_ = {}
    for shard in sorted((FIXTURES / name).glob("model*.safetensors")):
        all_ |= load_file(shard)
    all_ = {k.removeprefix("model."): v for k, v in all_.items()}
    all_ = {k.replace(SIGLIP, SIGLIP + "vision_model.") if SIGLIP in k and "vision_model" not in k else k: v for k, v in all_.items()}
    if embed := [k for k in all_ if k.endswith("embed_tokens.weight")]:
        all_["paligemma_with_expert.paligemma.lm_head.weight"] = all_.pop(embed[0])
    return all_


def tree_of(w, heads=8, head=16, vision_heads=2):
    """The leaves: products as openpi's einsums take them, stacked over layers."""
    count = lambda prefix: 1 + max(int(k[len(prefix):].split(".")[0]) for k in w if k.startswith(prefix))  # noqa: E731
    tree = {"PaliGemma/llm/embedder/input_embedding": w["paligemma_with_expert.paligemma.lm_head.weight"]}
    for tower, suffix in ((TEXT, ""), (EXPERT, "_1")):
        if f"{tower}layers.0.mlp.up_proj.weight" not in w:
            continue  # pi0-FAST has no expert
        layers = range(count(tower + "layers."))
        at = lambda name: np.stack([w[f"{tower}layers.{i}.{name}"] for i in layers])  # noqa: E731, B023
        a = f"PaliGemma/llm/layers/attn/{{}}{suffix}/w"
        tree[a.format("q_einsum")] = at("self_attn.q_proj.weight").reshape(len(layers), heads, head, -1).swapaxes(2, 3)
        tree[a.format("kv_einsum")] = np.stack([at(f"self_attn.{n}_proj.weight").reshape(len(layers), 1, head, -1).swapaxes(2, 3) for n in "kv"], 1)
        tree[a.format("attn_vec_einsum")] = at("self_attn.o_proj.weight").swapaxes(1, 2).reshape(len(layers), heads, head, -1)
        tree[f"PaliGemma/llm/layers/mlp{suffix}/gating_einsum"] = np.stack([at(f"mlp.{n}_proj.weight").swapaxes(1, 2) for n in ("gate", "up")], 1)
        tree[f"PaliGemma/llm/layers/mlp{suffix}/linear"] = at("mlp.down_proj.weight").swapaxes(1, 2)
        for leaf, name in (("pre_attention_norm", "input_layernorm"), ("pre_ffw_norm", "post_attention_layernorm")):
            if f"{tower}layers.0.{name}.weight" in w:
                tree[f"PaliGemma/llm/layers/{leaf}{suffix}/scale"] = at(f"{name}.weight")
            else:
                tree[f"PaliGemma/llm/layers/{leaf}{suffix}/Dense_0/kernel"] = at(f"{name}.dense.weight").swapaxes(1, 2)
                tree[f"PaliGemma/llm/layers/{leaf}{suffix}/Dense_0/bias"] = at(f"{name}.dense.bias")
        if f"{tower}norm.weight" in w:
            tree[f"PaliGemma/llm/final_norm{suffix}/scale"] = w[f"{tower}norm.weight"]
        else:
            tree[f"PaliGemma/llm/final_norm{suffix}/Dense_0/kernel"], tree[f"PaliGemma/llm/final_norm{suffix}/Dense_0/bias"] = w[f"{tower}norm.dense.weight"].T, w[f"{tower}norm.dense.bias"]
    v, block = SIGLIP + "vision_model.", "PaliGemma/img/Transformer/encoderblock/"
    layers = range(count(v + "encoder.layers."))
    at = lambda name: np.stack([w[f"{v}encoder.layers.{i}.{name}"] for i in layers])  # noqa: E731
    width = w[v + "post_layernorm.bias"].size
    tree["PaliGemma/img/embedding/kernel"], tree["PaliGemma/img/embedding/bias"] = w[v + "embeddings.patch_embedding.weight"].transpose(2, 3, 1, 0), w[v + "embeddings.patch_embedding.bias"]
    tree["PaliGemma/img/pos_embedding"] = w[v + "embeddings.position_embedding.weight"][None]
    for k in (0, 1):
        tree[f"{block}LayerNorm_{k}/scale"], tree[f"{block}LayerNorm_{k}/bias"] = at(f"layer_norm{k + 1}.weight"), at(f"layer_norm{k + 1}.bias")
        tree[f"{block}MlpBlock_0/Dense_{k}/kernel"], tree[f"{block}MlpBlock_0/Dense_{k}/bias"] = at(f"mlp.fc{k + 1}.weight").swapaxes(1, 2), at(f"mlp.fc{k + 1}.bias")
    for leaf, name in (("query", "q"), ("key", "k"), ("value", "v")):
        tree[f"{block}MultiHeadDotProductAttention_0/{leaf}/kernel"] = at(f"self_attn.{name}_proj.weight").swapaxes(1, 2).reshape(len(layers), width, vision_heads, -1)
        tree[f"{block}MultiHeadDotProductAttention_0/{leaf}/bias"] = at(f"self_attn.{name}_proj.bias").reshape(len(layers), vision_heads, -1)
    tree[f"{block}MultiHeadDotProductAttention_0/out/kernel"] = at("self_attn.out_proj.weight").swapaxes(1, 2).reshape(len(layers), vision_heads, -1, width)
    tree[f"{block}MultiHeadDotProductAttention_0/out/bias"] = at("self_attn.out_proj.bias")
    tree["PaliGemma/img/Transformer/encoder_norm/scale"], tree["PaliGemma/img/Transformer/encoder_norm/bias"] = w[v + "post_layernorm.weight"], w[v + "post_layernorm.bias"]
    plain = {"PaliGemma/img/head": "paligemma_with_expert.paligemma.model.multi_modal_projector.linear"} | {k.removesuffix(".weight"): k.removesuffix(".weight") for k in w if "." not in k.removesuffix(".weight") and k.endswith("weight")}
    for leaf, name in plain.items():
        tree[f"{leaf}/kernel"], tree[f"{leaf}/bias"] = w[f"{name}.weight"].T, w[f"{name}.bias"]
    return tree


def write(folder, tree, driver="zarr", end="/value"):
    """An OCDBT store with an array a leaf, named as Orbax names them."""
    tensorstore = pytest.importorskip("tensorstore")
    folder.mkdir(parents=True)
    for leaf, value in tree.items():
        spec = {"driver": driver, "kvstore": {"driver": "ocdbt", "base": f"file://{folder}/", "path": ".".join(["params", *(leaf + end).split("/")]) + "/"}}
        store = tensorstore.open(spec, create=True, dtype=tensorstore.dtype(value.dtype.name), shape=value.shape).result()
        store.write(np.ascontiguousarray(value)).result()


@pytest.mark.parametrize("config, name, driver, end", [("pi05", "pi05_tiny", "zarr", "/value"), ("pi0", "pi0_tiny", "zarr3", ""), ("pi0fast", "pi0_fast_tiny", "zarr", "/value")])
def test_a_tree_becomes_the_references_tensors(tmp_path, config, name, driver, end):
    want = weights_of(name)
    write(tmp_path / "ck/params", tree_of(want), driver, end)
    (tmp_path / "ck/assets/lab/arm").mkdir(parents=True)
    (tmp_path / "ck/assets/lab/arm/norm_stats.json").write_text("{}")
    facts = convert(tmp_path / "ck", tmp_path / "out", dtype="f32")
    got = load_file(tmp_path / "out/model.safetensors")
    assert facts["tensors"] == len(got) and set(got) == set(want)
    for k in want:
        assert got[k].shape == want[k].shape and (got[k] == want[k]).all(), k
    assert (tmp_path / "out/assets/lab/arm/norm_stats.json").exists()
    stated = json.loads((FIXTURES / name / "config.json").read_text())
    written = json.loads((tmp_path / "out/config.json").read_text())
    assert ("expert" in written) == (config != "pi0fast")
    for part in {"text", "expert", "vision"} & set(written):
        assert written[part].items() <= stated[part].items() | {("image_size", 224)}, part
    frame = np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8)
    options = dict(config=config, num_views=1, action_horizon=10, num_steps=2, statistics="none", device="cpu", precision="f32", threads=2)
    with vivace.load_model(FIXTURES / name, **options) as a, vivace.load_model(tmp_path / "out", **options) as b:
        given = dict(images=[frame], prompt=[2, 5, 9], state=[0.5] * 32)
        if config == "pi0fast":
            assert a.tokens(**given, end_token=-1) == b.tokens(**given, end_token=-1)
        else:
            assert (a.predict(**given, seed=3) == b.predict(**given, seed=3)).all()


def test_products_are_openpis(tmp_path):
    """The einsums of openpi's Gemma, on any weights, are products with the converted ones."""
    draw, D, N, H, F = np.random.default_rng(1), 12, 3, 4, 10
    table = dict(orbax._table("pi05"))
    made = lambda leaf, w: [turn(w) for _, turn in table["PaliGemma/llm/layers/" + leaf]]  # noqa: E731
    x, heads, f = draw.normal(size=(5, D)), draw.normal(size=(5, N, H)), draw.normal(size=(5, F))
    q, kv, o, gate, down = (draw.normal(size=s) for s in ((N, D, H), (2, 1, D, H), (N, H, D), (2, D, F), (F, D)))
    near = lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-12)  # noqa: E731
    near(np.einsum("td,ndh->tnh", x, q).reshape(5, -1), x @ made("attn/q_einsum/w", q)[0].T)
    for k, w in enumerate(made("attn/kv_einsum/w", kv)):
        near(np.einsum("td,ckdh->ctkh", x, kv)[k].reshape(5, -1), x @ w.T)
    near(np.einsum("tnh,nhd->td", heads, o), heads.reshape(5, -1) @ made("attn/attn_vec_einsum/w", o)[0].T)
    for k, w in enumerate(made("mlp/gating_einsum", gate)):
        near(x @ gate[k], x @ w.T)
    near(f @ down, f @ made("mlp/linear", down)[0].T)


def test_what_is_refused(tmp_path):
    tree = tree_of(weights_of("pi05_tiny"))
    one = "PaliGemma/img/head/bias"
    for i, (change, error, what) in enumerate((
            (lambda t: t.pop(one), vivace.CorruptDataError, "1 arrays are missing, PaliGemma/img/head/bias first"),
            (lambda t: t.update({"PaliGemma/more": t[one]}), vivace.UnsupportedError, "1 arrays of no policy known here, PaliGemma/more first"),
            (lambda t: t.pop("time_mlp_in/kernel"), vivace.UnsupportedError, "wanted the parameters of pi0.5, pi0 or pi0-FAST"),
            (lambda t: t.update({"PaliGemma/img/pos_embedding": t[one]}), vivace.CorruptDataError, "other axes"))):
        changed = dict(tree)
        change(changed)
        write(tmp_path / f"{i}/params", changed)
        with pytest.raises(error, match=what):
            convert(tmp_path / f"{i}", tmp_path / f"{i}-out")
        assert not (tmp_path / f"{i}-out").exists()
    with pytest.raises(vivace.InvalidArgumentError, match="f32, f16, bf16 from Orbax, got 'q8_0'"):
        convert(tmp_path / "0", tmp_path / "out", dtype="q8_0")
    for f in (tmp_path / "0/params/d").glob("*"):
        f.write_bytes(b"no data")
    with pytest.raises(vivace.CorruptDataError):
        convert(tmp_path / "0", tmp_path / "out")


def test_arrays_out_of_proportion_to_their_files(tmp_path):
    """Chunks that are not there are a fill value: a few hundred bytes say terabytes."""
    tensorstore = pytest.importorskip("tensorstore")
    tree = tree_of(weights_of("pi05_tiny"))
    for at, (leaf, shape, what) in enumerate((("PaliGemma/llm/embedder/input_embedding", [1 << 30, 1 << 14], r"its arrays would take \d{14} bytes, its files hold \d{1,8}$"),
                                              ("PaliGemma/llm/layers/mlp/linear", [4096, 1, 1], "PaliGemma/llm/layers/mlp/linear: 4096 layers, at most 1000 are read"))):
        base = tmp_path / f"{at}/params"
        write(base, {k: v for k, v in tree.items() if k != leaf})
        store = {"driver": "ocdbt", "base": {"driver": "file", "path": f"{base}/"}}
        tensorstore.open({"driver": "zarr", "kvstore": {**store, "path": f"params.{leaf.replace('/', '.')}.value"}, "metadata": {"shape": shape, "chunks": [1] * len(shape), "dtype": "<f4"}}, create=True).result()
        with pytest.raises(vivace.CorruptDataError, match=what):
            convert(tmp_path / f"{at}", tmp_path / "out")
        assert not (tmp_path / "out").exists()


def test_a_name_that_is_no_url(tmp_path):
    write(tmp_path / "plain/params", tree_of(weights_of("pi05_tiny")))
    for name in ("a b%20c", "d?e#f"):
        (tmp_path / "plain").rename(tmp_path / name)
        assert convert(tmp_path / name, tmp_path / f"{name}-out")["tensors"] == len(weights_of("pi05_tiny"))
        (tmp_path / name).rename(tmp_path / "plain")


def test_without_tensorstore(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorstore", None)
    (tmp_path / "params").mkdir()
    (tmp_path / "params/manifest.ocdbt").touch()
    with pytest.raises(vivace.UnsupportedError, match=r"needs tensorstore; pip install vivace\[convert\]"):
        convert(tmp_path, tmp_path / "out")
