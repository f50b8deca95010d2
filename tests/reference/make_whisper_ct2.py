"""Writes tests/fixtures/whisper/ct2.json: what faster-whisper 1.2.1 on CTranslate2 4.8.5 (float32, CPU) makes of the clips of
tests/speech_data.py: token ids of greedy and of five beams, mean log-probabilities, words with their times; and of 86 s its greedy text.

    python tests/reference/make_whisper_ct2.py     # in an environment that has faster-whisper too
"""
import json
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))


def with_vocabulary(folder: str) -> str:
    """The folder with the list of tokens that CTranslate2 wants beside the weights."""
    tokenizer = json.loads((Path(folder) / "tokenizer.json").read_text())
    ids = tokenizer["model"]["vocab"] | {t["content"]: t["id"] for t in tokenizer["added_tokens"]}
    names = {i: name for name, i in ids.items()}
    out = tempfile.mkdtemp()
    for file in Path(folder).iterdir():
        (Path(out) / file.name).symlink_to(file)
    (Path(out) / "vocabulary.json").write_text(json.dumps([names.get(i, f"<{i}>") for i in range(51864 if folder.endswith(".en") else 51865)]))
    return out


def main() -> None:
    from faster_whisper import WhisperModel

    from tests import speech_data
    from vivace import audio

    clips = {f"librivox/{k}": v[0] for k, v in speech_data.librivox().items()} | {"spoken/en/quick_brown_fox": speech_data.spoken()["en/quick_brown_fox"]}
    out = {}
    for name in ("whisper-tiny.en", "whisper-base"):
        model = WhisperModel(with_vocabulary(speech_data.weights(name)), device="cpu", compute_type="float32")
        for clip, raw in clips.items():
            samples, rate = audio.read(raw)
            assert rate == 16000
            for beams in (1, 5):
                segments = list(model.transcribe(samples, beam_size=beams, temperature=0.0, language="en", condition_on_previous_text=False, word_timestamps=beams == 1)[0])
                out[f"{name} {clip} {beams}"] = {"tokens": [s.tokens for s in segments], "avg_logprob": [round(s.avg_logprob, 6) for s in segments]} | (
                    {"words": [[w.word, w.start, w.end, round(w.probability, 4)] for s in segments for w in s.words]} if beams == 1 else {})
        if name == "whisper-tiny.en":
            segments = model.transcribe(speech_data.long_form()[0], beam_size=1, temperature=0.0, language="en")[0]
            out[f"{name} long"] = {"text": "".join(s.text for s in segments)}
    rows = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False)}" for k, v in out.items())
    (Path(__file__).resolve().parents[1] / "fixtures/whisper/ct2.json").write_text("{" + rows + "}\n")


if __name__ == "__main__":
    main()
