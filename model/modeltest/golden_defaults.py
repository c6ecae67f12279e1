"""Write what transformers takes for keys that a config.json leaves out, or has as null.

    python3 -m pip install torch==2.9.0 transformers==5.24.0
    python3 model/modeltest/golden_defaults.py

Two files come out, from the configuration classes of that version of transformers alone:

model/defaults.json is embedded in the program. For each model_type "absent" has the values of absent keys. The base of
rotary positions and the rotated part of a head are keys of it, too, whichever way the class has them. "null" lists the
keys of which transformers takes a null that does not mean the same as an absent key. "text" names the entry of the
decoder where that is in "text_config".

model/modeltest/testdata/defaults.json is for a test. For each golden variant it has what becomes of its config.json
when a key is changed: the keys, with their values, that the configuration class then has otherwise ("as"), so that
config.json with these keys in full is the same model; or that transformers refuses it ("refused"). Other changes leave
the model as it was. Where the class keeps a null, the value that means the same is found by comparing logits of
random weights.
"""

import copy
import json
import logging
import sys
import warnings
from dataclasses import fields
from pathlib import Path

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.configuration_utils import PreTrainedConfig
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

VERSION = "5.24.0"
HERE = Path(__file__).parent
FAMILIES = (HERE.parent / "family.go").read_text()
INERT = {f.name for f in fields(PreTrainedConfig)} | {
    "use_cache", "bos_token_id", "eos_token_id", "pad_token_id", "output_router_logits", "router_aux_loss_coef", "return_dict",
    "vision_config", "audio_config", "text_config", "attn_pdrop", "embd_pdrop", "classifier_dropout", "layer_types",
    "base_model_tp_plan", "base_model_pp_plan", "per_layer_config", "tie_last_hidden_states"}
UNLIKE = object()


def model_types():
    types = [line.split('ModelType: "')[1].split('"')[0] for line in FAMILIES.splitlines() if 'ModelType: "' in line]
    return [t for t in types if t in CONFIG_MAPPING]


def plain(value):
    """The value as JSON has it."""
    if isinstance(value, PreTrainedConfig):
        return value.to_dict()
    return json.loads(json.dumps(value, default=str))


def admits_null(cls, field, default):
    """Whether null is allowed and means something else than the default. Where the class checks types, others are
    refused: to Millrace such a null is an absent key."""
    if "None" not in str(field.type):
        return False
    probe = {field.name: None}
    if heads := getattr(cls, "num_attention_heads", None):
        probe["num_attention_heads"] = 2 * heads  # so that what is derived of it is not the default by chance
    try:
        return plain(getattr(cls(**probe), field.name)) != default
    except Exception:  # it means none, and another key of the default configuration needs one
        return True


def default_values(cls):
    """What absent keys mean, and the keys of which null means something else."""
    made = cls()
    absent, null = {}, []
    for f in fields(cls):
        if f.name in INERT or f.name.startswith("_") or f.name == "rope_parameters":
            continue
        value = f.default if not callable(f.default) else None
        try:
            value = plain(value)
        except TypeError:
            continue
        if value is not None:
            absent[f.name] = value
            if admits_null(cls, f, value):
                null.append(f.name)
    rope = plain(getattr(made, "rope_parameters", None))
    if rope:
        nested = [v for v in rope.values() if isinstance(v, dict)]
        if any(v["rope_type"] != "default" for v in nested):
            absent["rope_parameters"] = rope
        elif nested:
            absent["rope_theta"] = rope["full_attention"]["rope_theta"]
            absent["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
        else:
            base = getattr(cls, "default_theta", None)
            absent["rope_theta"] = base if isinstance(base, float) else rope["rope_theta"]
            if rope["rope_theta"] == absent["rope_theta"]:
                del rope["rope_theta"]
            if (part := rope.pop("partial_rotary_factor", None)) is not None:
                absent["partial_rotary_factor"] = part
            if rope.get("rope_type") != "default":
                absent["rope_parameters"] = rope
    return absent, null


def write_defaults(to):
    out = {}

    def add(name, cls):
        if name in out:
            return
        absent, null = default_values(cls)
        out[name] = {"absent": dict(sorted(absent.items())), "null": sorted(null)}
        text = (getattr(cls, "sub_configs_defaults", None) or {}).get("text_config")
        if text is None:
            return
        of = text.config_class
        if not issubclass(of, PreTrainedConfig):
            out[name]["auto"] = True
            of = CONFIG_MAPPING[text.model_type]
        out[name]["text"] = of.model_type
        add(of.model_type, of)

    for t in model_types():
        add(t, CONFIG_MAPPING[t])
    lines = [f"{json.dumps(name)}: {json.dumps(of)}" for name, of in sorted(out.items())]
    to.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def configured(keys):
    """The configuration that transformers makes of a config.json, and its decoder's."""
    keys = copy.deepcopy(keys)
    c = CONFIG_MAPPING[keys["model_type"]].from_dict(keys)
    c.validate() if hasattr(c, "validate") else None
    return c, c.get_text_config()


def logits(config):
    """Those of random weights, which depend on the shapes alone."""
    torch.manual_seed(0)
    config = copy.deepcopy(config)
    config._attn_implementation = config._experts_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    for name, p in sorted(model.named_parameters()):
        torch.nn.init.normal_(p, std=0.3)
    for name, b in sorted(model.named_buffers()):
        if "correction" in name:
            torch.nn.init.normal_(b, std=0.3)
    ids = torch.arange(2 * 40).reshape(2, 40) * 7 % min(config.vocab_size, 40)
    positions = min(40, config.max_position_embeddings)
    with torch.no_grad():
        return model(input_ids=ids[:, :positions], use_cache=False).logits.double()


def differing(before, after):
    """The keys of one configuration that another one has otherwise."""
    a, b = before.to_dict(), after.to_dict()
    skip = {"transformers_version", "_name_or_path", "architectures", "model_type", "dtype", "torch_dtype", "per_layer_config"}
    return {k: plain(b.get(k)) for k in {**a, **b} if k not in skip and plain(a.get(k, UNLIKE) if k in a else None) != plain(b.get(k))}


def changes(decoder):
    """The ways in which a decoder's keys are changed: a name, and the keys to set; None deletes one."""
    for key in decoder:
        yield f"{key}: absent", key, UNLIKE
        yield f"{key}: null", key, None
    rope = decoder.get("rope_parameters") or {}
    nested = [k for k, v in rope.items() if isinstance(v, dict)]
    for path in nested or [None]:
        for key in (rope[path] if path else rope):
            name = ".".join(filter(None, ["rope_parameters", path, key]))
            for op, value in (("absent", UNLIKE), ("null", None)):
                new = copy.deepcopy(rope)
                at = new[path] if path else new
                if value is UNLIKE:
                    del at[key]
                else:
                    at[key] = None
                yield f"{name}: {op}", "rope_parameters", new
        if path:
            for op, value in (("absent", UNLIKE), ("null", None)):
                new = copy.deepcopy(rope)
                new.pop(path)
                if value is None:
                    new[path] = None
                yield f"rope_parameters.{path}: {op}", "rope_parameters", new
    if rope:
        yield "rope_parameters: {}", "rope_parameters", {}
        yield "rope_parameters: absent, rope_theta: 12345", {"rope_parameters": UNLIKE, "rope_theta": 12345.0}, None
        yield "rope_parameters: absent, rope_scaling: null", {"rope_parameters": UNLIKE, "rope_scaling": None}, None
        if not nested:
            flat = {k: v for k, v in rope.items() if k not in ("rope_theta", "partial_rotary_factor")}
            yield ("rope_parameters as rope_scaling", {"rope_parameters": UNLIKE, "rope_scaling": flat}, None)
            yield ("rope_parameters as rope_scaling, rope_theta: 12345",
                   {"rope_parameters": UNLIKE, "rope_scaling": flat, "rope_theta": 12345.0}, None)


CANDIDATES = [False, True, 32.0, 0, 0.0, 1, 1.0, 1000000, 1000000.0]


def meaning(config, keys, in_text, name, key):
    """A value of a key that gives the logits that null gives; "refused" where that has none, None where none is found."""
    def of(value):
        k = copy.deepcopy(keys)
        d = k["text_config"] if in_text else k
        path = name.split(": ")[0].split(".")
        for part in path[:-1]:
            d = d[part]
        d[path[-1]] = value
        return logits(configured(k)[1])

    try:
        want = of(None)
    except Exception as e:
        return "refused"
    before = of_path(keys["text_config"] if in_text else keys, name)
    candidates = [c for c in CANDIDATES if isinstance(c, bool) == isinstance(before, bool)]
    for value in ([before] if before is not None else []) + candidates:
        try:
            got = of(value)
        except Exception:
            continue
        if got.shape == want.shape and torch.allclose(got, want, rtol=0, atol=1e-4 * float(want.abs().max())):
            return {"value": value}
    return None


def at_last(diff, name):
    """What the changed key itself has become; UNLIKE: nothing."""
    for part in name.split(": ")[0].split("."):
        diff = diff.get(part, UNLIKE) if isinstance(diff, dict) else UNLIKE
    return diff


def of_path(d, name):
    for part in name.split(": ")[0].split("."):
        d = d[part]
    return d


def cases(variant):
    keys = json.loads((variant / "config.json").read_text())
    in_text = "text_config" in keys
    decoder = keys["text_config"] if in_text else keys
    _, base = configured(keys)
    out, refused = {}, []
    for name, key, value in changes(decoder):
        sets = key if isinstance(key, dict) else {key: value}
        if any(k in ("model_type", "transformers_version", "architectures", "dtype", "torch_dtype", "use_cache", "text_config",
                     "vision_config", "audio_config", "per_layer_config", "initializer_range", "attention_dropout",
                      "output_router_logits", "router_aux_loss_coef") or k.endswith("_token_id") or k.endswith("token_index") for k in sets):
            continue
        changed = copy.deepcopy(keys)
        d = changed["text_config"] if in_text else changed
        for k, v in sets.items():
            if v is UNLIKE:
                d.pop(k, None)
            else:
                d[k] = copy.deepcopy(v)
        try:
            _, got = configured(changed)
        except Exception:
            refused.append(name)
            continue
        diff = differing(base, got)
        if "null" in json.dumps(diff) and at_last(diff, name) is not None:
            try:
                logits(got)
            except Exception:
                refused.append(name)
                continue
        if name.endswith(": null") and isinstance(key, str):
            last, at = name.split(": ")[0].split("."), at_last(diff, name)
            if at is None or (diff == {} and of_path(decoder, name) is None):
                if of_path(decoder, name) is None:
                    continue
                m = meaning(got, keys, in_text, name, key)
                if m == "refused":
                    refused.append(name)
                    continue
                if m is None:
                    out[name] = {"unknown": True}
                    continue
                at = diff
                for part in last[:-1]:
                    at = at[part]
                at[last[-1]] = m["value"]
        if diff:
            out[name] = {"as": diff}
    return {"refused": refused, "changed": out}


def main():
    assert transformers.__version__ == VERSION, transformers.__version__
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity(50)
    logging.disable(logging.CRITICAL)
    torch.set_num_threads(1)
    out, chosen = {}, sys.argv[1:]
    target = HERE / "testdata-defaults.json"
    if chosen and target.exists():
        out = json.loads(target.read_text())
    for variant in sorted(HERE.glob("testdata*/*/config.json")):
        variant = variant.parent
        name = f"{variant.parent.name}/{variant.name}"
        if chosen and variant.name not in chosen:
            continue
        try:
            out[name] = cases(variant)
        except Exception as e:
            print(name, "failed:", type(e).__name__, str(e)[:200])
            continue
        print(name, len(out[name]["refused"]), len(out[name]["changed"]),
              [k for k, v in out[name]["changed"].items() if "unknown" in v], flush=True)
    lines = [f"{json.dumps(name)}:{json.dumps(of, separators=(',', ':'))}" for name, of in sorted(out.items())]
    target.write_text("{\n" + ",\n".join(lines) + "\n}\n")
    if not chosen:
        write_defaults(HERE.parent / "defaults.json")


if __name__ == "__main__":
    main()
