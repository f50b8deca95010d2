"""Qwen3-VL in float64 NumPy: the tower and the layers that groot_numpy.py has of it, all of them, and the head. tests/reference/test_reference.py holds it to transformers' values."""
from tests.reference.groot_numpy import Groot, rms_norm


class Qwen3Vl(Groot):
    """config: of config.json; weights: hub name -> array. Eight bits are the language model's alone."""

    whole = True

    def __init__(self, config, weights, arithmetic=None):
        text = config["text_config"]
        backbone = {"image_token_id": config["image_token_id"], "vision": config["vision_config"], "text": text | {"mrope_section": text["rope_scaling"]["mrope_section"]}}
        super().__init__({"backbone.model." + name: w for name, w in weights.items()}, {"select_layer": text["num_hidden_layers"], "backbone": backbone}, arithmetic)

    def tower(self, image):
        a, self.a = self.a, self.a.in_expert()
        seen = super().tower(image)
        self.a = a
        return seen

    def logits(self, images, tokens):
        """[T, V] of every row of `tokens`, in which each image is one token and many rows."""
        h, _ = self.language(images, tokens)
        x = self.a.value(rms_norm(h, self.text["rms_norm_eps"], self.w[self.language_at + "norm.weight"]))
        head = self.w.get("backbone.model.lm_head.weight", self.w[self.language_at + "embed_tokens.weight"])
        return self.a.enters(x) @ self.a.weight(head).T
