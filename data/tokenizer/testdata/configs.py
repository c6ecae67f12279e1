"""Writes configs.json: what transformers makes of tokenizer_config.json beside the tokenizers of this directory.

    pip install transformers==4.57.3 tokenizers==0.22.2
    python configs.py > configs.json
"""

import json
import os
import shutil
import tempfile

import transformers

assert transformers.__version__ == "4.57.3", transformers.__version__

HERE = os.path.dirname(os.path.abspath(__file__))
BOTH = {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
EOS = {"eos_token": "<|eos|>"}
UNK = {"unk_token": "<unk>"}


def token(content, special=True, **flags):
    return {"content": content, "lstrip": False, "rstrip": False, "single_word": False, "normalized": False, "special": special} | flags


CASES = []


def case(name, tokenizer, cls, config, **files):
    CASES.append({"name": name, "tokenizer": tokenizer, "config": {"tokenizer_class": cls} | config, "files": files})


for add_bos in (None, False, True):
    for add_eos in (None, False, True):
        keys = {k: v for k, v in (("add_bos_token", add_bos), ("add_eos_token", add_eos)) if v is not None}
        what = f"add_bos_token {add_bos}, add_eos_token {add_eos}"
        case("Llama, " + what, "llama2", "LlamaTokenizerFast", BOTH | UNK | keys)
        case("Gemma, " + what, "gemma", "GemmaTokenizerFast", BOTH | UNK | keys)
        case("Llama 3, " + what, "llama3", "PreTrainedTokenizerFast", BOTH | keys)
        case("Qwen2, " + what, "qwen2", "Qwen2TokenizerFast", EOS | keys)
        case("GPT-2, " + what, "gpt2", "GPT2TokenizerFast", {"bos_token": "<|eos|>", "unk_token": "<|eos|>"} | EOS | keys)
        case("Llama with bytes, " + what, "llama3", "LlamaTokenizerFast", BOTH | {"unk_token": "<|bos|>"} | keys)
case("a class without Fast", "llama2", "LlamaTokenizer", BOTH | UNK | {"add_eos_token": True})
case("legacy", "llama2", "LlamaTokenizer", BOTH | UNK | {"legacy": True, "add_eos_token": True})
case("no bos", "llama3", "PreTrainedTokenizerFast", {"bos_token": None} | EOS)
case("eos is bos", "llama2", "LlamaTokenizerFast", {"bos_token": "<|eos|>", "eos_token": "<|bos|>", "add_eos_token": True} | UNK)
case("eos from the vocabulary", "llama3", "PreTrainedTokenizerFast", {"bos_token": "<|bos|>", "eos_token": "ing"})
case("eos that strips", "llama3", "PreTrainedTokenizerFast", {"bos_token": "<|bos|>", "eos_token": {"__type": "AddedToken"} | token("<|eos|>", lstrip=True, rstrip=True)})
case("prefix space", "gpt2", "GPT2TokenizerFast", EOS | {"bos_token": "<|eos|>", "unk_token": "<|eos|>", "add_prefix_space": True})
case("prefix space of Qwen2", "qwen2", "Qwen2TokenizerFast", EOS | {"add_prefix_space": True})
case("prefix space in the file", "prefix", "GPT2TokenizerFast", BOTH | {"unk_token": "<|eos|>"})
case("additional tokens", "llama3", "PreTrainedTokenizerFast", BOTH | {"additional_special_tokens": ["er", {"__type": "AddedToken"} | token("ing", lstrip=True)]})
case("extra tokens", "llama3", "PreTrainedTokenizerFast", BOTH | {"extra_special_tokens": {"image_token": "er"}})
case("decoder changes flags", "llama3", "PreTrainedTokenizerFast", BOTH | {"added_tokens_decoder": {
    "560": token("<|bos|>"), "561": token("<|eos|>", lstrip=True, rstrip=True)}})
case("decoder adds tokens", "llama3", "PreTrainedTokenizerFast", BOTH | {"added_tokens_decoder": {
    "560": token("<|bos|>"), "561": token("<|eos|>"), "562": token("<new>"), "563": token("fox", special=False, single_word=True)}})
case("decoder and eos", "llama3", "PreTrainedTokenizerFast", {"bos_token": "<|bos|>", "eos_token": "<new>", "added_tokens_decoder": {
    "560": token("<|bos|>"), "561": token("<|eos|>"), "562": token("<new>", rstrip=True)}})
case("pad that is nowhere", "llama3", "PreTrainedTokenizerFast", BOTH | {"pad_token": "[PAD]"})
case("eos that is nowhere", "llama3", "PreTrainedTokenizerFast", {"bos_token": "<|bos|>", "eos_token": "<end>"})
case("split special tokens", "llama3", "PreTrainedTokenizerFast", BOTH | {"split_special_tokens": True})
case("template", "llama3", "PreTrainedTokenizerFast", BOTH | {"chat_template": "one {{ messages[0].content }}"})
case("list of templates", "llama3", "PreTrainedTokenizerFast", BOTH | {"chat_template": [
    {"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}, {"name": "rag", "template": "rag"}]})
case("list with a default only", "llama3", "PreTrainedTokenizerFast", BOTH | {"chat_template": [{"name": "default", "template": "plain"}]})
case("list without a default", "llama3", "PreTrainedTokenizerFast", BOTH | {"chat_template": [{"name": "rag", "template": "rag"}]})
case("template file", "llama3", "PreTrainedTokenizerFast", BOTH | {"chat_template": "one"}, **{"chat_template.jinja": "from the file {{ eos_token }}"})
case("template files", "llama3", "PreTrainedTokenizerFast", BOTH, **{
    "chat_template.jinja": "from the file", "additional_chat_templates/tool_use.jinja": "tools from a file"})
case("legacy template file", "llama3", "PreTrainedTokenizerFast", BOTH, **{"chat_template.json": json.dumps({"chat_template": "from JSON"})})
case("special_tokens_map", "llama3", "PreTrainedTokenizerFast", {}, **{"special_tokens_map.json": json.dumps(BOTH)})
case("special_tokens_map loses", "llama3", "PreTrainedTokenizerFast", {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}, **{
    "special_tokens_map.json": json.dumps({"bos_token": "<|eos|>", "eos_token": "<|bos|>"})})

case("special_tokens_map and a decoder", "llama3", "PreTrainedTokenizerFast", {"eos_token": "<|eos|>", "added_tokens_decoder": {
    "560": token("<|bos|>"), "561": token("<|eos|>")}}, **{"special_tokens_map.json": json.dumps({"eos_token": "<|bos|>"})})
case("special_tokens_map with more", "llama3", "PreTrainedTokenizerFast", {"additional_special_tokens": ["er"]}, **{
    "special_tokens_map.json": json.dumps({"eos_token": token("<|eos|>", lstrip=True), "bos_token": "<|bos|>", "additional_special_tokens": ["ing"]})})
case("added_tokens.json", "llama3", "PreTrainedTokenizerFast", BOTH, **{"added_tokens.json": json.dumps({"<|bos|>": 560, "<new>": 562})})
case("added_tokens.json that is known", "llama3", "PreTrainedTokenizerFast", BOTH, **{"added_tokens.json": json.dumps({"<|bos|>": 560})})

TEXTS = ["hello world", " the fox  <|eos|> thing\n", "<|bos|>a <new> b<|eos|>", "", "foxes fox the<end>[PAD] thing wer"]

for c in CASES:
    with tempfile.TemporaryDirectory() as root:
        shutil.copy(os.path.join(HERE, c["tokenizer"] + ".json"), os.path.join(root, "tokenizer.json"))
        json.dump(c["config"], open(os.path.join(root, "tokenizer_config.json"), "w"))
        for name, text in c["files"].items():
            os.makedirs(os.path.dirname(os.path.join(root, name)), exist_ok=True)
            open(os.path.join(root, name), "w").write(text)
        tok = transformers.AutoTokenizer.from_pretrained(root)
    c["bos"], c["eos"] = tok.bos_token_id, tok.eos_token_id
    c["ids"] = [tok(t).input_ids for t in TEXTS]
    c["bare"] = [tok(t, add_special_tokens=False).input_ids for t in TEXTS]
    c["chats"] = []
    for tools in (None, [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]):
        try:
            c["chats"].append(tok.apply_chat_template([{"role": "user", "content": "hi"}], tools=tools, tokenize=False))
        except ValueError:
            c["chats"].append(None)

print('{"transformers":"%s",\n"texts":%s,\n"cases":[%s]}' % (
    transformers.__version__, json.dumps(TEXTS), ",\n".join(json.dumps(c, separators=(",", ":")) for c in CASES)))
