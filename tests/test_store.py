"""vivace pull, list, rm: kept models, Hugging Face caches beside them, and what is wrong with either."""
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import vivace
from vivace import fetch, store
from vivace.errors import CorruptDataError, InvalidArgumentError, IoError, NotFoundError, UnsupportedError

TINY = Path(__file__).parent / "fixtures/tiny/llama"
GGUF = Path(__file__).parent / "fixtures/tiny_gguf/llama_q4_1.gguf"
IDS = [1, 2, 3]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A machine with an empty cache of ours and an empty one of the hub."""
    (tmp_path / "hf/hub").mkdir(parents=True)
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def hub(home, name="org/tiny", *, source=TINY, named=True) -> Path:
    """A model as the hub's tool leaves it: blobs named by digest, links in snapshots/."""
    root, revision = home / "hf/hub" / f"models--{name.replace('/', '--')}", "a" * 40
    snapshot = root / "snapshots" / revision
    for folder in (root / "blobs", snapshot, root / "refs"):
        folder.mkdir(parents=True)
    for file in source.iterdir():
        data = file.read_bytes()
        digest = hashlib.sha256(data).hexdigest() if file.suffix == ".safetensors" else hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
        (root / "blobs" / digest).write_bytes(data)
        (snapshot / file.name).symlink_to(f"../../blobs/{digest}")
    if named:
        (root / "refs/main").write_text(revision)
    return snapshot


def rows(kind=None, **options):
    return [r for r in store.models(**options) if kind is None or r["kind"] == kind]


def tree(folder) -> dict:
    return {str(p.relative_to(folder)): (p.lstat().st_mtime_ns, os.readlink(p) if p.is_symlink() else p.read_bytes() if p.is_file() else None) for p in sorted(folder.rglob("*"))}


def tokens(name):
    with vivace.load_model(name, device="cpu") as model:
        return model.generate_ids(IDS, max_tokens=4).tokens


def test_a_folder_is_pulled_listed_used_and_removed(home):
    facts = store.pull(str(TINY))
    assert facts["name"] == "llama" and facts == store.pull(str(TINY)), "a second pull changes nothing"
    assert tokens("llama") == tokens(TINY)
    listed, = rows("pulled", verify=True)
    assert listed == {"name": "llama", "kind": "pulled", "bytes": facts["bytes"], "path": facts["path"], "state": "whole"}
    assert {p.name for p in Path(facts["path"]).iterdir()} - {store.MANIFEST} == {p.name for p in TINY.iterdir() if p.suffix in store.ENDS}
    assert store.remove("llama")["bytes"] >= 0 and rows("pulled") == []
    with pytest.raises(NotFoundError, match="no kept model of this name"):
        store.remove("llama")
    with pytest.raises(NotFoundError, match="nor a model of `vivace list`"):
        vivace.load_model("llama", device="cpu")


def test_a_file_of_gguf_under_a_name_of_its_own(home):
    facts = store.pull(str(GGUF), name="me/small")
    assert facts["path"].endswith("me--small/llama_q4_1.gguf") and tokens("me/small") == tokens(GGUF)
    assert store.pull(str(GGUF), name="me/small", digest=facts["digest"]) == facts
    assert [r["name"] for r in rows("pulled")] == ["me/small"]


def test_hub_caches_are_read_and_never_written(home):
    snapshot = hub(home)
    before = tree(home / "hf")
    assert [(r["name"], r["state"], r["path"]) for r in rows("hub cache")] == [("org/tiny", "whole", str(snapshot))]
    assert tokens("org/tiny") == tokens(TINY)
    facts = store.pull("org/tiny")
    assert facts["name"] == "org/tiny" and not Path(facts["path"]).joinpath("config.json").is_symlink() and facts["digest"] == store.pull(str(TINY))["digest"]
    store.remove("org/tiny")
    with pytest.raises(UnsupportedError, match="which Vivace only reads"):
        store.remove("org/tiny")
    assert tree(home / "hf") == before


def test_revisions_of_a_hub_cache(home):
    snapshot = hub(home, named=False)
    assert store.find("org/tiny") == str(snapshot), "the only revision there is"
    (snapshot.parent / ("b" * 40)).mkdir()
    assert store.find("org/tiny") is None, "two of them, and none is main"
    (home / "hf/hub/models--org--tiny/refs/main").write_text("../../../..\n")
    assert store.find("org/tiny") is None, "a name that leads out"
    (home / "hf/hub/models--org--tiny/refs/main").write_text("b" * 40)
    assert rows("hub cache")[0]["state"] == "incomplete"
    with pytest.raises(NotFoundError, match="it lacks weights"):
        store.pull("org/tiny")


def test_strange_names_in_a_hub_cache(home):
    for name in ("models--", "models--..--..", "models--a\x1b[2J", "datasets--org--x", "models--a--b--c"):
        (home / "hf/hub" / name / "snapshots/x").mkdir(parents=True)
    (home / "hf/hub/models--f").write_text("a file")
    listed = [r["name"] for r in rows("hub cache")]
    assert all(n.isprintable() and ".." not in n for n in listed) and not any(r["state"] == "whole" for r in rows("hub cache"))


def test_a_blob_that_is_not_what_it_is_named_by(home):
    snapshot = hub(home)
    blob = next(p for p in snapshot.iterdir() if p.suffix == ".safetensors").resolve()
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    with pytest.raises(CorruptDataError, match="not the one it is named by"):
        store.pull("org/tiny")
    assert rows("pulled") == []


@pytest.mark.parametrize("change", ["byte", "shorter", "gone", "touched"])
def test_files_that_changed_after_they_were_pulled(home, change):
    folder = Path(store.pull(str(TINY))["path"])
    file = folder / "model.safetensors"
    data = bytearray(file.read_bytes())
    if change == "byte":
        data[-1] ^= 1
        file.write_bytes(data)
    elif change == "shorter":
        file.write_bytes(data[:-1])
    elif change == "gone":
        file.unlink()
    else:
        os.utime(file, ns=(1, 1))
        assert tokens("llama") and rows("pulled")[0]["state"] == "whole", "the same bytes with another time"
        return
    assert rows("pulled", verify=True)[0]["state"] == "changed"
    for call in (lambda: store.find("llama"), lambda: store.pull(str(TINY))):
        with pytest.raises(CorruptDataError, match="model.safetensors.*vivace rm llama"):
            call()
    store.remove("llama")
    assert store.pull(str(TINY))


def test_a_digest_is_pinned(home):
    digest = store.pull(str(TINY))["digest"]
    store.remove("llama")
    with pytest.raises(CorruptDataError, match="nothing was kept"):
        store.pull(str(TINY), digest="0" * 64)
    assert not [p for p in store.pulled_dir().iterdir() if p.is_dir()]
    assert store.pull(str(TINY), digest=digest)["digest"] == digest
    with pytest.raises(CorruptDataError, match="has digest"):
        store.pull(str(TINY), digest="0" * 64)
    with pytest.raises(InvalidArgumentError, match="64 hexadecimal digits"):
        store.pull(str(TINY), digest="abc")


def stopped(home, monkeypatch, rng, module=store):
    """A pull that is stopped at a random place, several times, with what may be left there: the last one is whole."""
    source = home / "source"
    shutil.rmtree(source, ignore_errors=True)
    source.mkdir()
    (source / "config.json").write_text("{}")
    for i in range(rng.randrange(1, 5)):
        (source / f"m{i}.safetensors").write_bytes(rng.randbytes(rng.randrange(1, 5000)))
    copied, real, name = [], module._copy, f"s{rng.randrange(1 << 30)}"
    for _ in range(rng.randrange(1, 6)):
        left = [rng.randrange(0, 3)]

        def copy(src, target, file):
            if left[0] == 0:
                raise KeyboardInterrupt
            left[0] -= 1
            copied.append(file)
            return real(src, target, file)

        module._copy = copy
        try:
            facts = module.pull(str(source), name=name)
            break
        except KeyboardInterrupt:
            part = store.pulled_dir() / f".{name}.part"
            if part.exists() and rng.random() < 0.5:  # the journal cut short, a copy damaged, the source changed
                journal = part / store.JOURNAL
                wrong = rng.choice(["journal", "copy", "source"])
                if wrong == "journal" and journal.exists():
                    journal.write_bytes(journal.read_bytes()[:-rng.randrange(1, 20)])
                elif wrong == "copy" and (there := [p for p in part.iterdir() if p.suffix == ".safetensors"]):
                    p = rng.choice(there)
                    p.write_bytes(rng.randbytes(p.stat().st_size))
                elif wrong == "source":
                    p = rng.choice(sorted(source.glob("*.safetensors")))
                    p.write_bytes(rng.randbytes(p.stat().st_size))
                    os.utime(p, ns=(rng.randrange(1 << 60),) * 2)
        finally:
            module._copy = real
    else:
        facts = module.pull(str(source), name=name)
    kept = Path(facts["path"])
    assert {p.name for p in kept.iterdir()} == {p.name for p in source.iterdir()} | {store.MANIFEST}
    assert all((kept / p.name).read_bytes() == p.read_bytes() for p in source.iterdir()), "bytes of the source as it is"
    assert [r["state"] for r in store.models(verify=True) if r["name"] == name] == ["whole"]
    store.remove(name)
    return len(copied) - len(set(copied))


def test_a_stopped_pull_goes_on(home, monkeypatch):
    again = [stopped(home, monkeypatch, random.Random(seed)) for seed in range(40)]
    assert again.count(0) > 10, "what was whole is not copied again"


def test_a_planted_fault_is_seen(home, monkeypatch):
    """A journal that is believed without a look at the copies."""
    monkeypatch.setattr(store, "_as_noted", lambda copy, source, row: copy.is_file())
    with pytest.raises(AssertionError):
        for seed in range(40):
            stopped(home, monkeypatch, random.Random(seed))


def test_sources_that_are_none(home, monkeypatch):
    bad = home / "bad"
    bad.mkdir()
    (bad / "config.json").write_text("{}")
    cases = [("no/such", NotFoundError, "Vivace downloads nothing from a hub"), ("org/unknown", NotFoundError, "hf download"), (str(bad), NotFoundError, "it lacks weights"), (__file__, UnsupportedError, "wanted a folder in Hugging Face's layout")]
    for source, kind, said in cases:
        with pytest.raises(kind, match=said):
            store.pull(source)
    (bad / "model.safetensors.index.json").write_text('{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}')
    (bad / "one.safetensors").write_bytes(b"x")
    with pytest.raises(NotFoundError, match="it lacks two.safetensors; a download that was stopped"):
        store.pull(str(bad))
    (bad / "two.safetensors").symlink_to("/etc/passwd")
    with pytest.raises(UnsupportedError, match="leads out of the folder"):
        store.pull(str(bad))
    (bad / "two.safetensors").unlink()
    os.mkfifo(bad / "two.safetensors")
    (bad / "model.safetensors.index.json").unlink()
    with pytest.raises(InvalidArgumentError, match="a pipe or device"):
        store.pull(str(bad))
    (bad / "two.safetensors").unlink()
    monkeypatch.setattr(shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(0, 0, 0))
    with pytest.raises(IoError, match="it goes on"):
        store.pull(str(bad), name="other")


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b/c", "a--b", "/a", "a\nb", ".hidden", "x" * 97, "-x", "smollm2-135m-instruct", "SMOLLM2-135M-instruct"])
def test_names_that_are_none(home, name):
    with pytest.raises(InvalidArgumentError):
        store.pull(str(TINY), name=name or "\x1b")
    if name.lower() not in fetch.MODELS:
        assert store.find(name) is None
        with pytest.raises(InvalidArgumentError):
            store.remove(name)


def test_a_manifest_that_is_none(home):
    folder = Path(store.pull(str(TINY))["path"])
    for text in ("{", "[]", '{"name": "llama", "files": [{"name": "../x", "bytes": 1, "mtime_ns": 1, "sha256": ""}]}', '{"name": 3, "files": []}'):
        (folder / store.MANIFEST).write_text(text)
        with pytest.raises(CorruptDataError):
            store.find("llama")
        assert rows("pulled")[0]["state"] == "changed"


def test_the_commands(home):
    def vivace_(*args):
        done = subprocess.run([sys.executable, "-m", "vivace.cli", *args], capture_output=True, text=True, timeout=60)
        assert "Traceback" not in done.stderr, done.stderr
        return done

    pulled = json.loads(vivace_("pull", str(TINY), "--name", "a", "--json").stdout)
    listed = json.loads(vivace_("list", "--json", "--verify").stdout)["models"]
    assert [r["path"] for r in listed if r["kind"] == "pulled"] == [pulled["path"]] and {r["name"] for r in listed if r["kind"] == "to fetch"} == set(fetch.MODELS)
    assert "to fetch" in vivace_("list").stdout and vivace_("pull", str(TINY), "--name", "a").stdout.startswith("a: ")
    (Path(pulled["path"]) / "config.json").write_text("{}")
    assert vivace_("list").returncode == 1
    assert vivace_("rm", "a").stdout.startswith("a: ") and vivace_("rm", "a").stderr.startswith("error[NotFound]: a: ")
    assert vivace_("--version").stdout == f"vivace {vivace.__version__}\n"
    assert vivace_("rm", "smollm2-135m-instruct").stderr.startswith("error[NotFound]: ")


def test_models_that_are_fetched(home, monkeypatch):
    """Of one file and of several, without a network: files of another size and digest are told apart."""
    def known(name, data, beside=()):
        return fetch.Model((), name, len(data), hashlib.sha256(data).hexdigest(), "Apache-2.0", beside)

    monkeypatch.setattr(fetch, "MODELS", {"one": known("one.gguf", b"abc"), "two": known("two/a.json", b"{}", (known("two/b.safetensors", b"xyz"),))})
    for name, data in (("one.gguf", b"abd"), ("two/a.json", b"{}")):
        (fetch.cache_dir() / name).parent.mkdir(parents=True, exist_ok=True)
        (fetch.cache_dir() / name).write_bytes(data)
    state = lambda **v: [(r["name"], r["kind"], r["state"], r["bytes"]) for r in rows(**v)]
    assert state() == [("one", "fetched", "whole", 3), ("two", "to fetch", "incomplete", 5)]
    (fetch.cache_dir() / "two/b.safetensors").write_bytes(b"xyz")
    assert state(verify=True) == [("one", "fetched", "changed", 3), ("two", "fetched", "whole", 5)]
    assert rows()[1]["path"] == str(fetch.cache_dir() / "two")
    with pytest.raises(CorruptDataError, match="its digest is"):
        store.pull("two", digest="0" * 64)
    with pytest.raises(InvalidArgumentError, match="keeps its own name"):
        store.pull("two", name="three")
    assert store.remove("two") == {"name": "two", "bytes": 5} and [r["name"] for r in rows("to fetch")] == ["two"]
