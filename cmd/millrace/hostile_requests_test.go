package main

import (
	"fmt"
	"strings"
)

// hostileRequests are wrong arguments, run files and values.
func hostileRequests() (all []hostile) {
	add := func(h hostile) {
		if h.name == "" {
			h.name = h.line
		}
		all = append(all, h)
	}
	// Arguments.
	for _, c := range []struct{ line, want string }{
		{"tarin", `did you mean "train"`},
		{"trian run.yaml", "trian"},
		{"serve", "there is no command serve"},
		{"login", "there is no command login"},
		{"train --lr 3", "unknown flag --lr: write learning_rate=3"},
		{"train run.yaml --learning-rate 1e-4", "write learning_rate=1e-4"},
		{"train run.yaml --learning_rate=1e-4", "write learning_rate=1e-4"},
		{"plan run.yaml --memory-device 8GiB", "write memory.device=8GiB"},
		{"preview run.yaml --datasets", "write datasets=VALUE"},
		{"train run.yaml --per_device_train_batch_size 4", "batch_tokens"},
		{"train run.yaml --verbose", "unknown flag --verbose; see millrace train --help"},
		{"train run.yaml learning_rat=1e-4", "did you mean learning_rate"},
		{"train run.yaml learning_rate=fast", "learning_rate must be a number"},
		{"plan --shape qwen2.5-7b run.yaml nonsense", "unexpected argument nonsense"},
		{"train no.yaml", "no.yaml"},
		{"train run.yaml more.yaml", "more.yaml"},
		{"train data", "data"},
		{"train --set", "--set"},
		{"train --trace=maybe", "--trace"},
		{"help tarin", "tarin"},
		{"plan --machine 4090", "did you mean rtx4090"},
		{"plan --machine mine", "or name a file that describes yours"},
		{"plan run.yaml --machine no.yaml", "no.yaml"},
		{"plan run.yaml --machine data", "data"},
		{"plan run.yaml --machine run.yaml", "machine file run.yaml: lines 1, 2, 3, 4, 5, 6, 7, 8: unknown keys model"},
		{"plan run.yaml --machine model/config.json", "unknown keys architectures, model_type, vocab_size"},
		{"plan --machine-out m.yaml", "--machine-out: name the machine"},
		{"plan --machine dgx-2 --machine-out no/m.yaml", "there is no directory no"},
		{"plan --shape 70b", "did you mean llama-3-70b"},
		{"plan --shape llama-3-70b --model model", "--model and --shape"},
		{"plan --model no", `"no"`},
		{"plan --tbw lots run.yaml", "--tbw"},
		{"plan --tbw -5TB run.yaml", "--tbw"},
		{"plan --rehearse=x run.yaml", "--rehearse"},
		{"compare runs/a", "compare needs 2 to 64 runs"},
		{"compare run.yaml run.yaml", "run.yaml"},
		{"sweep run.yaml", "no key has several values"},
		{"sweep run.yaml seed=1,x", "seed must be a whole number"},
		{"sweep run.yaml seed=1,1", "the value 1 is there twice"},
		{"sweep run.yaml output_dir=a,b", "output_dir has several values"},
		{"notify run.yaml", "has no notices"},
		{"notify run.yaml notify=[{url:x}]", "notify"},
		{"train run.yaml notify=[{command:[no-such-program]}]", "notify"},
		{"probe --device tpu", "tpu"},
		{"probe --device cuda:0", "cuda:0"},
		{"probe --device cuda:x", "cuda:x"},
		{"probe --path no --device cpu", "no"},
		{"probe --path run.yaml --device cpu", "run.yaml"},
		{"probe extra", "extra"},
		{"preview --limit -1", "--limit"},
		{"preview --limit=-1", "--limit"},
		{"preview --limit x", "--limit"},
		{"preview --json --html x.html", "--json and --html"},
		{"preview --html no/x.html", "no"},
		{"preview --html data", "data"},
		{"eval --model model", "--data"},
		{"eval --model model --data no.txt --tokenizer bytes", "no.txt"},
		{"eval --model model --data data/a.txt --type csv --tokenizer bytes", "csv"},
		{"eval --model model --data data/a.txt --tokenizer no", "no"},
		{"eval --model model --data data/a.txt --tokenizer bytes --sequence-len 1", "sequence"},
		{"eval --model model --data data/a.txt --tokenizer bytes --sequence-len 999999", "sequence"},
		{"eval --model model --data data/a.txt --tokenizer bytes --memory-host lots", "--memory-host"},
		{"eval --model model --data data/a.txt --tokenizer bytes --memory-device 1KiB", "memory.device"},
		{"eval --model model --data data/a.txt --tokenizer bytes --compute fp8", "fp8"},
		{"eval --model model --data data/a.txt --tokenizer bytes --max-samples=-1", "max_samples"},
		{"grad --model model --tokens t.json", "--out"},
		{"grad --model model --tokens no.json --out g.safetensors", "no.json"},
		{"grad --model model --tokens run.yaml --out g.safetensors", "run.yaml"},
		{"grad --model no --tokens x --out y", `"no"`},
		{"generate --model model", "--prompt"},
		{"generate --model model --prompt x --prompt y", "--json"},
		{"generate --model model --prompts no.jsonl --json", "no.jsonl"},
		{"generate --model model --prompts run.yaml --json", "line 1"},
		{"generate --model model hello", "write --prompt hello"},
		{"generate --model model --prompt x", "tokenizer"},
		{"generate --model model --prompt x --tokenizer bytes --max-tokens 0", "max"},
		{"generate --model model --prompt x --tokenizer bytes --max-tokens many", "--max-tokens"},
		{"generate --model model --prompt x --tokenizer bytes --temperature -1", "--temperature"},
		{"generate --model model --prompt x --tokenizer bytes --temperature=NaN", "temperature"},
		{"generate --model model --prompt x --tokenizer bytes --top-p 7", "top"},
		{"generate --model model --prompt x --tokenizer bytes --top-k=-3", "top"},
		{"generate --model model --prompt x --tokenizer bytes --seed=-1", "--seed"},
		{"chat", "--model"},
		{"chat --model no --tokenizer bytes", `"no"`},
		{"chat --model model --tokenizer bytes", "no chat template"},
		{"chat --model model --tokenizer bytes --chat-template no.jinja", "no.jinja"},
		{"chat --model model --tokenizer bytes --chat-template model", "no chat template"},
		{"chat --model model --max-tokens 0", "max"},
		{"chat --model model --temperature hot", "--temperature"},
		{"convert", "train.yaml"},
		{"convert no.yaml", "no.yaml"},
		{"convert data", "data"},
		{"convert data/a.txt", "mapping"},
		{"convert run.yaml", "a run file of Millrace already"},
		{"convert model/config.json", "name a file of one of them"},
		{"import no.gguf out", "no.gguf"},
		{"import run.yaml imported", "run.yaml"},
		{"import data imported", "data"},
		{"import no.gguf", "DIR"},
		{"import x.gguf y --dtype int8", "int8"},
		{"export model", "export"},
		{"export model out2 --gguf a.gguf", "export"},
		{"export model --gguf a.gguf --dtype q5_1", "q5_1"},
		{"export model --gguf a.gguf", "tokenizer.json"},
		{"export model --gguf a.gguf --shard-size 2GB", "--shard-size"},
		{"export model out2 --pre qwen2", "--pre"},
		{"export model out2 --shard-size many", "many"},
		{"export model out2 --shard-size -1GB", "-1GB"},
		{"push model", "OWNER/NAME"},
		{"push model nothing", "OWNER/NAME"},
		{"push no me/x", "no"},
		{"push data me/x", "config.json"},
		{"push model me/x", "HF_HUB_OFFLINE"},
		{"push . me/x --dry-run", "config.json"},
		{"push model me/x@a --revision b", "--revision"},
		{"push model me/x --revision ..", "branch"},
		{"export model out2 --dtype fp8", "fp8"},
		{"export model model", "model"},
		{"export model data", "data"},
		{"export no out2", `"no"`},
		{"export --checkpoint no --model model --out out2", "no"},
		{"export --checkpoint data --model model --out out2", "data"},
		{"checkpoint", "list"},
		{"checkpoint prune x", "there is no command checkpoint prune"},
		{"checkpoint list no", "no"},
		{"checkpoint list data", "data"},
		{"checkpoint list run.yaml", "run.yaml is a file"},
		{"checkpoint verify data/a.txt", "data/a.txt is a file"},
		{"checkpoint list", "see millrace checkpoint list --help"},
		{"checkpoint verify no/step-000001", "no/step-000001"},
		{"checkpoint verify data", "data"},
		{"bench", "--shape"},
		{"bench --shape no", "known are"},
		{"bench --model model --steps 0", "steps"},
		{"bench --model model --warmup=-1", "warmup"},
		{"bench --model model --sequence-len 0", "sequence"},
		{"bench --model model --tokens 100 --sequence-len 32", "tokens"},
		{"bench --model model --micro-batch=-1", "--micro-batch"},
		{"bench --model model --stream never", "--stream"},
		{"bench --model model --moments 5bit", "5bit"},
		{"bench --model model --memory-disk 1GB", "memory.path"},
		{"bench --model model --trace no/trace.json", "no"},
		{"bench --model model --max-grad-norm=-1", "grad"},
		{"plan --shape qwen2.5-7b --trace no/trace.json", "no"},
		{"report", "RUN"},
		{"report no", "no"},
		{"report data", "metrics.jsonl"},
		{"report 1 2 3 4 5 6 7", "at most 6"},
		{"report data --json --html p.html", "--json and --html"},
		{"trace", "missing"},
		{"trace no.json", "no.json"},
		{"trace data", "data"},
		{"trace no.json --step=-1", "--step"},
		{"trace no.json --step=two", "--step"},
		{"trace no.json --dark", "--svg"},
		{"trace no.json --png p.png", "--svg"},
		{"demo --dir data", "--dir data"},
		{"demo --dir run.yaml", "--dir"},
		{"demo --steps 3", "--steps"},
		{"demo --steps=-8", "--steps"},
		{"demo --steps 1e9", "--steps"},
		{"demo --seconds 0", "--seconds"},
		{"demo --seconds=NaN", "--seconds"},
		{"version extra", "extra"},
		{"completion", "SHELL"},
		{"completion tcsh", "fish"},
		{"man", "DIR"},
		{"man run.yaml", "not a directory"},
		{"man run.yaml/man1", "not a directory"},
	} {
		add(hostile{line: c.line, want: c.want, status: exitBadRequest})
	}
	// Keys and values of a run file, as --set has them.
	for _, c := range []struct{ set, want string }{
		{"learning_rat=1", "did you mean learning_rate"},
		{"per_device_train_batch_size=1", "batch_tokens"},
		{"num_train_epochs=3", "epochs"},
		{"memory.vram=1GiB", "keys of memory"},
		{"learning_rate=fast", "learning_rate"},
		{"learning_rate=.nan", "learning_rate"},
		{"learning_rate=-1", "learning_rate"},
		{"max_steps=0", "max_steps"},
		{"max_steps=-5", "max_steps"},
		{"max_steps=1e30", "max_steps"},
		{"epochs=0", "epochs"},
		{"epochs=2", "max_steps and epochs"},
		{"sequence_len=0", "sequence_len"},
		{"sequence_len=1", "sequence_len"},
		{"sequence_len=99999999999", "sequence_len"},
		{"batch_tokens=100", "batch_tokens"},
		{"batch_tokens=32000000000000", "batch_tokens"},
		{"weight_decay=.inf", "weight_decay"},
		{"adam_betas=[1, 2, 3]", "adam_betas"},
		{"adam_betas=[0.9, 1.5]", "adam_betas"},
		{"lr_scheduler=sine", "lr_scheduler"},
		{"warmup_ratio=2", "warmup_ratio"},
		{"warmup_steps=-1", "warmup_steps"},
		{"overlong=drops", "split, drop or truncate"},
		{"precision={compute: fp8}", "precision"},
		{"precision={compute: f32, master: split}", "leave master out"},
		{"numerics.micro_batch=3", "micro_batch"},
		{"numerics.head_chunk=0", "numerics.head_chunk"},
		{"memory.device=20", "memory.device"},
		{"memory.device=8X", "memory.device"},
		{"memory.device.x=1", "memory.device"},
		{"memory.host=1MiB", "memory.host"},
		{"memory.device=10KiB", "memory.device"},
		{"memory.recompute=never", "memory.recompute"},
		{"memory.max_write_per_day=0", "memory.max_write_per_day"},
		{"device=tpu", "tpu"},
		{"seed=-1", "seed"},
		{"eval.every=5", "eval"},
		{"save.best=true", "save.best"},
		{"save.keep=-1", "save"},
		{"resume=no/step-000001", "no/step-000001"},
		{"init=zeros", "init"},
		{"tokenizer=no", "no"},
		{"chat_template=no.jinja", "no.jinja"},
		{"model=", "model is missing"},
		{"model=no/such", "no/such"},
		{"datasets=[]", "datasets"},
		{"datasets=data/a.txt", "datasets"},
		{"datasets=[{path: data/a.txt, type: text, weight: 0}]", "weight"},
		{"datasets=[{path: data/a.txt, type: text, weight: -1}]", "weight"},
		{"datasets=[{path: data/a.txt, type: csv}]", "csv"},
		{"datasets=[{path: data/none-*.txt, type: text}]", "none-"},
		{"datasets=[{path: data, glob: '**/*.md', type: text}]", "*.md"},
		{"datasets=[{path: openai/gsm8k, type: text}]", "gsm8k"},
		{"val_size=1000", "val_size"},
		{"val_size=1.5", "val_size"},
		{"output_dir=run.yaml", "run.yaml"},
		{"output_dir=data/a.txt/out", "data/a.txt"},
		{"output_dir=caf\xe9", "UTF-8"},
		{"output_dir=#x", "quotes"},
		{"datasets[0].path=x", "datasets[0].path"},
		{"nonsense", "key=value"},
		{"train_on_prompt=3", "train_on_prompt"},
		{"\x1b[31mred=1", "key"},
		{"learning_rate=" + strings.Repeat("9x", 50_000), "learning_rate"},
	} {
		name := "train --set " + c.set
		add(hostile{name: fmt.Sprintf("%.80q", name), args: []string{"train", "run.yaml", "--set", c.set}, want: c.want, status: exitBadRequest})
	}
	// Whole run files.
	yaml := "model: model\ntokenizer: bytes\ndatasets: [{path: data/a.txt, type: text}]\nsequence_len: 32\nbatch_tokens: 128\n"
	for name, c := range map[string]struct{ doc, want string }{
		"empty":             {"", "model is missing"},
		"only a comment":    {"# nothing\n", "model is missing"},
		"a text":            {"hello\n", "mapping"},
		"a list":            {"- 1\n", "mapping"},
		"not YAML":          {"model: [\n", "line 1"},
		"tabs":              {"model: m\n\tdatasets: x\n", "line"},
		"two documents":     {yaml + "---\nseed: 1\n", "second YAML document"},
		"a key twice":       {yaml + "seed: 1\nseed: 2\n", "line 7"},
		"many unknown keys": {yaml + "lora_rank: 8\nbf16: true\nsave_steps: 500\nlogging_steps: 1\n", "line 9: unknown key logging_steps"},
		"escapes in a key":  {yaml + "\"\\e[2J\": 1\n", `\x1b[2J`},
		"escapes":           {yaml + "\x1b[31mfoo: 1\n", "control character"},
		"UTF-16":            {"\xff\xfem\x00o\x00", "UTF-8"},
		"not UTF-8":         {yaml + "output_dir: caf\xe9\n", "UTF-8"},
		"a bomb":            {bomb(), "aliases"},
		"deep":              {strings.Repeat("[", 60_000), "line 1"},
		"huge":              {yaml + strings.Repeat("# x\n", 100_000), "KiB"},
		"a missing alias":   {yaml + "seed: *s\n", "line 6"},
		"a tag":             {yaml + "seed: !!binary |\n  x\n", "seed"},
		"zeros":             {strings.Repeat("\x00", 100), "control character"},
	} {
		add(hostile{name: "run file: " + name, line: "train run.yaml", spoil: func(w *workshop) { w.write("run.yaml", c.doc) }, want: c.want, status: exitBadRequest})
	}
	for _, line := range []string{"plan run.yaml", "preview run.yaml"} {
		add(hostile{name: line + " with an unknown key", line: line, spoil: func(w *workshop) { w.write("run.yaml", "lr: 1\n") }, want: "learning_rate", status: exitBadRequest})
	}
	add(hostile{name: "a conversation to continue", line: "generate --model model --prompts talk.jsonl --json",
		spoil: func(w *workshop) {
			w.write("talk.jsonl", `{"messages": [{"role": "user", "content": "x"}]}`+"\n")
		}, want: "prompt 1 of", status: exitBadRequest})
	// What only looks wrong.
	add(hostile{line: "--version", want: "millrace "})
	add(hostile{line: "-v", want: "millrace "})
	add(hostile{line: "help train", want: "Usage: millrace train"})
	add(hostile{name: "a byte order mark", line: "plan run.yaml", spoil: func(w *workshop) { w.write("run.yaml", "\ufeff"+w.read("run.yaml")) }, want: "qwen3"})
	add(hostile{name: "Windows lines", line: "plan run.yaml", spoil: func(w *workshop) { w.write("run.yaml", strings.ReplaceAll(w.read("run.yaml"), "\n", "\r\n")) }, want: "qwen3"})
	add(hostile{line: "plan run.yaml --set learning_rate=", want: "qwen3"})
	add(hostile{line: "plan run.yaml learning_rate=1e-4 memory.device=8G", want: "of a budget of 7.45 GiB"})
	add(hostile{line: "plan memory.device=8gib run.yaml", want: "of a budget of 8.00 GiB"})
	add(hostile{line: "plan memory.device=8gi", want: "of a budget of 8.00 GiB"})
	add(hostile{line: "plan run.yaml --set batch_tokens=64 batch_tokens=96", want: "step     96 positions"})
	add(hostile{line: "plan a=b.yaml", want: "qwen3", spoil: func(w *workshop) { w.write("a=b.yaml", w.read("run.yaml")) }})
	add(hostile{line: "plan run.yaml precision.compute=f32", want: "f32 compute, f32 master"})
	return all
}

// bomb is a run file of some lines that stand for billions.
func bomb() string {
	var b strings.Builder
	b.WriteString("model: m\ndatasets:\n- &a0 {path: x, type: text}\n")
	for i := range 9 {
		fmt.Fprintf(&b, "- &a%d {<<: [%s]}\n", i+1, strings.TrimSuffix(strings.Repeat(fmt.Sprintf("*a%d, ", i), 10), ", "))
	}
	return b.String()
}
