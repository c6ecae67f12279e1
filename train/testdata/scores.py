"""Write scores.json: the scores that transformers gives texts with tiny reward models of several families.

    python3 -m pip install torch==2.15.0 transformers==5.24.0
    python3 train/testdata/scores.py

Nothing is downloaded. A model has a directory with the config.json of a model of text, in which the keys of SCORING are
set, and with weights that follow from a formula of integers (see `weight` of objectives.py), of
vectors 1 and 4 times its number. transformers opens it as AutoModelForSequenceClassification; a key of the weights that
it misses or does not know is an error. The file has, for each model, the config.json of the model of text, that of the
reward model, the shapes of the tensors by their names, the texts as tokens, and their scores, in fp32 on a CPU. The
script refuses scores that differ where texts are padded at their end to one length.
"""

import json
import pathlib
import tempfile

import numpy as np
import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoConfig, AutoModelForSequenceClassification

EOS, PAD = 95, 96
SCORING = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
SIZES = dict(vocab_size=98, hidden_size=48, intermediate_size=80, num_hidden_layers=2, num_attention_heads=4,
             num_key_value_heads=2, max_position_embeddings=128, rms_norm_eps=1e-6)
# Texts that end with EOS, with no EOS, with two, of one token, and of padding alone.
TEXTS = [[65, 66, 0, 88, 89, 90, EOS], [17, 0, 11], [75, 86, EOS, EOS], [5], [PAD, PAD]]
MODELS = {
    "llama": (dict(model_type="llama", tie_word_embeddings=False), "LlamaForSequenceClassification", PAD),
    "qwen2, tied": (dict(model_type="qwen2", tie_word_embeddings=True), "Qwen2ForSequenceClassification", PAD),
    "qwen3, padded with the end": (dict(model_type="qwen3", head_dim=12, tie_word_embeddings=True),
                                   "Qwen3ForSequenceClassification", EOS),
    "gemma2": (dict(model_type="gemma2", head_dim=12, query_pre_attn_scalar=12, sliding_window=4,
                    final_logit_softcapping=2.0, attn_logit_softcapping=5.0, hidden_activation="gelu_pytorch_tanh",
                    tie_word_embeddings=True), "Gemma2ForSequenceClassification", PAD),
    "olmo2": (dict(model_type="olmo2", tie_word_embeddings=False), "Olmo2ForSequenceClassification", PAD),
}


def weight(tensor, size):
    with np.errstate(over="ignore"):
        h = np.arange(size, dtype=np.uint32) + np.uint32(tensor) * np.uint32(0x9E3779B9)
        h ^= h >> np.uint32(16)
        h *= np.uint32(0x85EBCA6B)
        h ^= h >> np.uint32(13)
        h *= np.uint32(0xC2B2AE35)
        h ^= h >> np.uint32(16)
    return torch.from_numpy(((h >> np.uint32(8)).astype(np.float32) - 2**23) / np.float32(2**27))


def scores(config):
    """The shapes of the tensors, and the scores of the texts."""
    with tempfile.TemporaryDirectory() as name:
        path = pathlib.Path(name)
        (path / "config.json").write_text(json.dumps(config))
        made = AutoModelForSequenceClassification.from_config(AutoConfig.from_pretrained(path))
        shapes = {n: list(p.shape) for n, p in sorted(made.named_parameters())}
        tensors = {n: weight(i, int(np.prod(s))).view(s).contiguous() for i, (n, s) in enumerate(shapes.items())}
        tensors = {n: t if t.dim() > 1 else 1 + 4 * t for n, t in tensors.items()}
        save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
        model, info = AutoModelForSequenceClassification.from_pretrained(path, dtype=torch.float32,
                                                                         output_loading_info=True)
        for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
            assert not info[what], (what, info[what])
        assert model.config.num_labels == 1
        model.eval()
        longest = max(len(t) for t in TEXTS)
        pad = config["pad_token_id"]
        batch = torch.tensor([t + [pad] * (longest - len(t)) for t in TEXTS])
        mask = torch.tensor([[1] * len(t) + [0] * (longest - len(t)) for t in TEXTS])
        with torch.no_grad():
            together = model(input_ids=batch, attention_mask=mask).logits[:, 0]
            alone = torch.stack([model(input_ids=torch.tensor([t])).logits[0, 0] for t in TEXTS])
        assert torch.allclose(together, alone, atol=2e-6), (together, alone)
        return shapes, [float(f"{x:.9g}") for x in alone.tolist()]


def main():
    torch.set_num_threads(1)
    made = []
    for name, (family, architecture, pad) in MODELS.items():
        text = family | SIZES | {"architectures": [architecture.replace("SequenceClassification", "CausalLM")]}
        config = text | SCORING | {"architectures": [architecture], "pad_token_id": pad}
        shapes, values = scores(config)
        print(name, values, flush=True)
        made.append(dict(name=name, text=text, config=config, pad=pad, shapes=shapes, scores=values))
    lines = ",\n  ".join(json.dumps(m) for m in made)
    versions = json.dumps({"torch": torch.__version__, "transformers": transformers.__version__})
    (pathlib.Path(__file__).parent / "scores.json").write_text(
        f'{{"versions": {versions},\n "texts": {json.dumps(TEXTS)},\n "models": [\n  {lines}\n ]}}\n')


if __name__ == "__main__":
    main()
