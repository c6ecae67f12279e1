package main

import (
	"encoding/binary"
	"os"
	"strings"
	"syscall"

	"github.com/millrace/millrace/hf"
)

// hostileFiles are models, tokenizers, templates, data, GGUF files and checkpoints that are damaged, or are something
// else.
func hostileFiles() (all []hostile) {
	all = append(all, hostileModels()...)
	all = append(all, hostileLinks()...)
	all = append(all, hostileData()...)
	all = append(all, hostileRecords()...)
	all = append(all, hostileResults()...)
	all = append(all, hostileTraces()...)
	return append(all, hostileCheckpoints()...)
}

// someTrace is a trace with one step, and a model's name that moves a terminal's cursor.
const someTrace = `{"traceEvents":[{"ph":"M","name":"thread_name","tid":2,"args":{"name":"compute"}},` +
	`{"ph":"X","name":"forward a","tid":2,"ts":0,"dur":1500,"args":{"step":3}}],"otherData":{"model":"a\u001b[2Jb"}}`

func hostileTraces() (all []hostile) {
	for name, text := range map[string]string{
		"empty": "", "text": "step 1: loss 3", "a list": "[]",
		"cut": someTrace[:len(someTrace)/2], "twice": someTrace + someTrace,
		"another program's": `{"traceEvents":[{"ph":"M","name":"thread_name","args":{"name":"CrRendererMain"}}]}`,
		"deep":              strings.Repeat("[", 1<<20), "metrics": `{"step":1,"loss":3}`,
	} {
		all = append(all, bad("trace: "+name, "trace t.json", "t.json", func(w *workshop) { w.write("t.json", text) }))
	}
	some := func(w *workshop) { w.write("t.json", someTrace) }
	return append(all,
		bad("trace: a pipe", "trace pipe", "pipe", func(w *workshop) { w.pipe("pipe") }),
		bad("trace: a directory", "trace data", "data", nil),
		bad("trace: a missing step", "trace t.json --step 9", "no step 9", some),
		bad("trace: no steps", "trace t.json", "no steps", func(w *workshop) {
			w.write("t.json", strings.Replace(someTrace, `"step":3`, `"step":0`, 1))
		}),
		bad("trace: a picture nowhere", "trace t.json --svg no/p.svg", "there is no directory no", some),
		bad("trace: a picture on a directory", "trace t.json --svg data", "data", some),
		hostile{name: "trace: a model's name", line: "trace t.json --svg p.svg", spoil: some, want: `a\x1b[2Jb`,
			writes: true},
		hostile{name: "trace: a picture on a device", line: "trace t.json --svg /dev/null", spoil: some, want: "measured"})
}

// bad is a request that is wrong after something has been damaged.
func bad(name, line, want string, spoil func(*workshop)) hostile {
	return hostile{name: name, line: line, want: want, spoil: spoil, status: exitBadRequest}
}

// cut takes bytes off the end of a file.
func cut(name string, bytes int) func(*workshop) {
	return func(w *workshop) {
		text := w.read(name)
		w.write(name, text[:max(len(text)-bytes, 0)])
	}
}

func (w *workshop) remove(name string) {
	w.t.Helper()
	if err := os.RemoveAll(w.path(name)); err != nil {
		w.t.Fatal(err)
	}
}

func (w *workshop) link(to, name string) {
	w.t.Helper()
	if err := os.Symlink(to, w.path(name)); err != nil {
		w.t.Skip("this system makes no symbolic links for this user: ", err)
	}
}

func (w *workshop) pipe(name string) {
	w.t.Helper()
	if err := syscall.Mkfifo(w.path(name), 0o666); err != nil {
		w.t.Skip("the file system has no named pipes: ", err)
	}
}

func hostileModels() (all []hostile) {
	const weights = "model/model.safetensors"
	for name, spoil := range map[string]func(*workshop){
		"cut":             cut(weights, 10),
		"empty":           cut(weights, 1<<30),
		"not safetensors": func(w *workshop) { w.write(weights, strings.Repeat("not safetensors ", 100)) },
		"a long header": func(w *workshop) {
			w.write(weights, string(binary.LittleEndian.AppendUint64(nil, 1<<60))+w.read(weights)[8:])
		},
		"an LFS pointer": func(w *workshop) {
			w.write(weights, "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n")
		},
		"missing":     func(w *workshop) { w.remove(weights) },
		"a directory": func(w *workshop) { w.remove(weights); w.write(weights+"/x", "") },
		"a pipe":      func(w *workshop) { w.remove(weights); w.pipe(weights) },
		"a dangling link": func(w *workshop) {
			w.remove(weights)
			w.link("nothing", weights)
		},
		"without a tensor": func(w *workshop) {
			w.writeWeights(func(s *hf.TensorSpec, _ *[]float32) bool { return s.Name != someWeight })
		},
		"only pickles": func(w *workshop) { w.remove(weights); w.write("model/pytorch_model.bin", "x") },
		"an index alone": func(w *workshop) {
			w.remove(weights)
			w.write("model/model.safetensors.index.json", `{"metadata": {}, "weight_map": {"a": "model-1.safetensors"}}`)
		},
		"an index of elsewhere": func(w *workshop) {
			w.remove(weights)
			w.write("model/model.safetensors.index.json", `{"metadata": {}, "weight_map": {"a": "../data/a.txt"}}`)
		},
	} {
		all = append(all, bad("weights: "+name, "train run.yaml", "model", spoil),
			bad("weights, evaluated: "+name, "eval --model model --data data/a.txt --tokenizer bytes", "model", spoil))
	}
	for name, c := range map[string]struct{ old, new, want string }{
		"not JSON":           {"{", "[", "config.json"},
		"another family":     {`"qwen3"`, `"mamba"`, "mamba"},
		"layers":             {`"num_hidden_layers": 2`, `"num_hidden_layers": -2`, "num_hidden_layers"},
		"layers as text":     {`"num_hidden_layers": 2`, `"num_hidden_layers": "two"`, "num_hidden_layers"},
		"astronomical":       {`"hidden_size": 24`, `"hidden_size": 999999999999`, "hidden_size"},
		"another shape":      {`"intermediate_size": 40`, `"intermediate_size": 48`, "mlp"},
		"an unknown scaling": {`"rope_theta": 10000.0`, `"rope_theta": 10000.0, "rope_scaling": {"rope_type": "magic"}`, "magic"},
		"quantized":          {`"head_dim": 8`, `"head_dim": 8, "quantization_config": {"bits": 4}`, "quantization_config"},
		"of GPTQ": {`"head_dim": 8`, `"head_dim": 8, "quantization_config": {"bits": 4, "quant_method": "gptq"}`,
			`quantized ("gptq"), and only those of the original model`},
	} {
		all = append(all, bad("config.json: "+name, "train run.yaml", c.want, func(w *workshop) { w.change("model/config.json", c.old, c.new) }))
	}
	all = append(all,
		bad("config.json: missing", "plan run.yaml", "config.json", func(w *workshop) { w.remove("model/config.json") }),
		bad("config.json: empty", "plan run.yaml", "config.json", func(w *workshop) { w.write("model/config.json", "") }),
		bad("config.json: a pipe", "plan run.yaml", "config.json", func(w *workshop) { w.remove("model/config.json"); w.pipe("model/config.json") }),
		bad("model: a file", "plan run.yaml --set model=data/a.txt", "data/a.txt", nil),
		bad("model: a GGUF file", "chat --model x.GGUF", "use millrace import x.GGUF DIR",
			func(w *workshop) { w.write("x.GGUF", "GGUF") }))
	for name, text := range map[string]string{"empty": "", "cut": `{"model": {"type": "BPE", "vocab": {`, "a list": "[]", "another kind": `{"model": {"type": "Magic"}}`,
		"numbers": `{"model": 3}`, "not UTF-8": "{\"\xff\": 1}"} {
		all = append(all, bad("tokenizer.json: "+name, "train run.yaml --set tokenizer=auto", "tokenizer", func(w *workshop) { w.write("model/tokenizer.json", text) }))
	}
	all = append(all, bad("tokenizer: of a larger vocabulary", "preview run.yaml", "tokenizer", func(w *workshop) {
		w.change("model/config.json", `"vocab_size": 257`, `"vocab_size": 200`)
	}))
	for name, text := range map[string]string{"not Jinja": "{% if %}", "endless": "{% for a in range(100000) %}{% for b in range(100000) %}x{% endfor %}{% endfor %}",
		"reaches out": "{{ ''.__class__.__mro__ }}", "includes": "{% include '/etc/passwd' %}"} {
		h := bad("chat template: "+name, "", "template", func(w *workshop) {
			w.write("t.jinja", text)
			w.write("data/m.jsonl", `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}`+"\n")
		})
		h.args = []string{"preview", "run.yaml", "--set", "chat_template=t.jinja", "--set", "datasets=[{path: data/m.jsonl, type: messages}]"}
		all = append(all, h)
	}
	return all
}

func hostileData() (all []hostile) {
	for name, c := range map[string]struct{ file, entry, text string }{
		"empty text":      {"x.txt", "type: text", ""},
		"text not UTF-8":  {"x.txt", "type: text", "abc\xff\xfe"},
		"cut JSON":        {"x.jsonl", "type: text", `{"text": "a"}` + "\n" + `{"text": "b"` + "\n"},
		"not JSON":        {"x.jsonl", "type: text", "hello\n"},
		"a number":        {"x.jsonl", "type: text", `{"text": 7}` + "\n"},
		"a missing field": {"x.jsonl", "type: text", `{"body": "a"}` + "\n"},
		"an empty field":  {"x.jsonl", "type: text", `{"text": ""}` + "\n"},
		"rows of numbers": {"x.json", "type: text", "[1, 2]"},
		"deep JSON":       {"x.json", "type: text", strings.Repeat("[", 100_000)},
		"no question":     {"x.jsonl", "type: prompt-response", `{"question": "a", "answer": "b"}` + "\n"},
		"no messages":     {"x.jsonl", "type: messages", `{"messages": []}` + "\n"},
		"an unknown role": {"x.jsonl", "type: messages", `{"messages": [{"role": "king", "content": "a"}]}` + "\n"},
		"text and list":   {"x.jsonl", "type: prompt-response", `{"prompt": "a", "response": [{"role": "assistant", "content": "b"}]}` + "\n"},
		"a prompt alone": {"x.jsonl", "type: prompt-response, response: completion",
			`{"prompt": [{"role": "user", "content": "a"}], "completion": []}` + "\n"},
		"gzip that is not": {"x.jsonl.gz", "type: text", `{"text": "a"}` + "\n"},
		"zstd that is not": {"x.jsonl.zst", "type: text", `{"text": "a"}` + "\n"},
		"Parquet of text":  {"x.parquet", "type: text", "PAR1 and nothing else PAR1"},
		"empty Parquet":    {"x.parquet", "type: text", ""},
		"escapes in names": {"\x1b[31mred.jsonl", "type: text", `{"text": 7}` + "\n"},
	} {
		want := c.file
		if strings.HasPrefix(c.file, "\x1b") {
			want = `\x1b[31mred.jsonl`
		}
		h := bad("data: "+name, "", want, func(w *workshop) { w.write("rows/"+c.file, c.text) })
		h.args = []string{"preview", "run.yaml", "--set", "datasets=[{path: rows, glob: '*', " + c.entry + "}]"}
		all = append(all, h)
	}
	late := bad("data: of evaluation are missing", "", "none.txt", nil)
	late.args = []string{"train", "run.yaml", "--set", "eval.datasets=[{path: data/none.txt, type: text}]"}
	long := bad("data: no prompt fits", "", "sequence_len", func(w *workshop) {
		w.write("data/p.jsonl", `{"prompt": "`+strings.Repeat("long ", 100)+`", "response": "x"}`+"\n")
	})
	long.args = []string{"train", "run.yaml", "--set", "datasets=[{path: data/p.jsonl, type: prompt-response}]", "--set", "overlong=drop"}
	// A row that is not what the request says is answered with what it is.
	for want, c := range map[string]struct{ kind, row string }{
		"such rows are of type alpaca":   {"text", `{"instruction": "a", "input": "", "output": "b"}`},
		"such rows are of type messages": {"text", `{"messages": [{"role": "user", "content": "a"}]}`},
		"such rows are of type sharegpt": {"messages", `{"conversations": [{"from": "human", "value": "a"}]}`},
		"such rows are of type messages, with messages: conversations": {"text",
			`{"conversations": [{"role": "user", "content": "a"}]}`},
		"such rows are of type prompt-response, with prompt: prompt and response: response": {"text",
			`{"prompt": "a", "response": "b"}`},
		"such rows are of type prompt-response, with prompt: question and response: answer": {"alpaca",
			`{"question": "a", "answer": "b"}`},
		"user_tag: human, assistant_tag: bot": {"messages", `{"messages": [{"role": "human", "content": "a"}]}`},
	} {
		h := bad("eval: "+want, "", want, func(w *workshop) { w.write("data/x.jsonl", c.row+"\n") })
		h.args = []string{"eval", "--model", "model", "--tokenizer", "bytes", "--data", "data/x.jsonl", "--type", c.kind}
		all = append(all, h)
	}
	skipped := hostile{name: "data: one bad row is skipped", args: []string{"preview", "run.yaml", "--set", "datasets=[{path: data/x.jsonl, type: text, bad_rows: skip}]"},
		want: "skipped 1 bad row of", spoil: func(w *workshop) { w.write("data/x.jsonl", `{"text": 7}`+"\n"+`{"text": "a good row"}`+"\n") }}
	return append(all, late, long, skipped)
}

func hostileRecords() (all []hostile) {
	for name, text := range map[string]string{"empty": "", "cut": `{"step": 1, "loss"`, "not JSON": "hello\n{}\n",
		"a list": "[1, 2]\n{}\n", "a text as loss": `{"step": 1, "loss": "low"}` + "\n{}\n",
		"deep": strings.Repeat("[", 100_000) + "\n{}\n", "a huge number": `{"step": 1, "loss": 1e999}` + "\n{}\n"} {
		all = append(all, bad("records: "+name, "report out", "metrics.jsonl",
			func(w *workshop) { w.write("out/metrics.jsonl", text) }))
	}
	return all
}

// hostileResults are places for results, and the files that grad and import read.
func hostileResults() (all []hostile) {
	for name, text := range map[string]string{"empty": "", "cut": `{"input_ids": [[1, 2`, "fractions": `{"input_ids": [[1.5, 2]], "labels": [[1, 2]]}`,
		"negative": `{"input_ids": [[-1, 2]], "labels": [[1, 2]]}`, "beyond the vocabulary": `{"input_ids": [[1, 999]], "labels": [[1, 2]]}`,
		"of two lengths": `{"input_ids": [[1, 2]], "labels": [[1]]}`, "without labels": `{"input_ids": [[1, 2]]}`, "nothing counts": `{"input_ids": [[1, 2]], "labels": [[-100, -100]]}`,
		"other keys": `{"ids": [[1]]}`, "two objects": `{"input_ids": [[1, 2]], "labels": [[1, 2]]} {}`, "a text": `{"input_ids": "abc", "labels": [[1]]}`} {
		all = append(all, bad("tokens: "+name, "grad --model model --tokens tokens.json --out g.safetensors", "tokens.json", func(w *workshop) { w.write("tokens.json", text) }))
	}
	to := func(verb, place, out, want string, status int, spoil func(*workshop)) *hostile {
		all = append(all, hostile{name: verb + ": " + place, line: verb + " " + out, want: want, status: status, spoil: func(w *workshop) {
			w.write("tokens.json", `{"input_ids": [[1, 2, 3]], "labels": [[-100, 2, 3]]}`)
			if spoil != nil {
				spoil(w)
			}
		}})
		return &all[len(all)-1]
	}
	for verb, done := range map[string]string{"grad --model model --tokens tokens.json --out": "gradient norm", "preview run.yaml --html": "document",
		"bench --model model --sequence-len 32 --tokens 64 --steps 1 --warmup 0 --trace": "measured"} {
		to(verb, "a directory", "data", "data", exitBadRequest, nil)
		to(verb, "nowhere", "no/result", "there is no directory no", exitBadRequest, nil)
		to(verb, "a pipe", "pipe", "pipe", exitBadRequest, func(w *workshop) { w.pipe("pipe") })
		to(verb, "a dangling link", "link", "link to nothing", exitBadRequest, func(w *workshop) { w.link("nothing", "link") })
		to(verb, "a device", "/dev/null", done, exitDone, nil).check = func(w *workshop, _ result) {
			if info, err := os.Stat("/dev/null"); err != nil || info.Mode()&os.ModeCharDevice == 0 {
				w.t.Errorf("the device is %v, %v", info, err)
			}
		}
		linked := to(verb, "a link", "link", done, exitDone, func(w *workshop) { w.write("kept", "old"); w.link("kept", "link") })
		linked.writes, linked.check = true, func(w *workshop, _ result) {
			if to, err := os.Readlink(w.path("link")); to != "kept" || err != nil || len(w.read("kept")) < 100 {
				w.t.Errorf("the link is to %q, %v", to, err)
			}
		}
	}

	gguf := func(w *workshop) string {
		text, err := os.ReadFile("../../gguf/testdata/tiny_llama.gguf")
		if err != nil {
			w.t.Fatal(err)
		}
		return string(text)
	}
	for name, change := range map[string]func(string) string{
		"empty":              func(string) string { return "" },
		"only the beginning": func(s string) string { return s[:6] },
		"cut":                func(s string) string { return s[:len(s)-100] },
		"cut in the names":   func(s string) string { return s[:200] },
		"a newer version":    func(s string) string { return s[:4] + "\x63" + s[5:] },
		"counts beyond all":  func(s string) string { return s[:8] + strings.Repeat("\xff", 16) + s[24:] },
		"another file":       func(string) string { return "PK\x03\x04 a zip file" },
	} {
		all = append(all, bad("GGUF: "+name, "import x.gguf imported", "x.gguf", func(w *workshop) { w.write("x.gguf", change(gguf(w))) }))
	}
	all = append(all, bad("GGUF: a string in a hole", "import x.gguf imported", "the file is damaged", func(w *workshop) {
		w.write("x.gguf", "GGUF\x03\x00\x00\x00"+strings.Repeat("\x00", 8)+"\x01"+strings.Repeat("\x00", 7)+
			"\x01"+strings.Repeat("\x00", 7)+"a\x08\x00\x00\x00\x00\x00\x00\x80\x2f\x00\x00\x00") // 190 GiB
		if err := os.Truncate(w.path("x.gguf"), 200<<30); err != nil {
			w.t.Skip("the file system has no sparse files of this length: ", err)
		}
	}))
	all = append(all, bad("GGUF: a pipe", "import x.gguf imported", "x.gguf", func(w *workshop) { w.pipe("x.gguf") }))
	for _, c := range []struct {
		name, line, want string
		spoil            func(*workshop)
	}{
		{"over files", "import x.gguf data", "data", nil},
		{"over files, with --replace", "import x.gguf data --replace", "data", nil},
		{"over a thesis", "import x.gguf model --replace", "thesis.txt", func(w *workshop) { w.write("model/thesis.txt", "years") }},
		{"to a file", "import x.gguf run.yaml --replace", "run.yaml", nil},
		{"to a dangling link", "import x.gguf link", "link", func(w *workshop) { w.link("nothing", "link") }},
	} {
		all = append(all, bad("import "+c.name, c.line, c.want, func(w *workshop) {
			w.write("x.gguf", gguf(w))
			if c.spoil != nil {
				c.spoil(w)
			}
		}))
	}
	return append(all, hostile{name: "import --replace through a link", line: "import x.gguf link --replace", want: "link", writes: true,
		spoil: func(w *workshop) { w.write("x.gguf", gguf(w)); w.link("model", "link") },
		check: func(w *workshop, _ result) {
			if to, err := os.Readlink(w.path("link")); to != "model" || err != nil || !strings.Contains(w.read("model/config.json"), "llama") {
				w.t.Errorf("the link is to %q, %v", to, err)
			}
		}})
}

// hostileCheckpoints are of a run that has been trained before.
func hostileCheckpoints() (all []hostile) {
	const last = "out/checkpoints/step-000003"
	saved := func(name, line, want string, status int, spoil func(*workshop)) *hostile {
		all = append(all, hostile{name: name, line: line, want: want, status: status, slow: true, spoil: func(w *workshop) {
			cmd := inProcess("hostile", "train", "run.yaml", "--set", "save.every=1", "--set", "save.keep=0")
			cmd.Dir = w.dir
			cmd.Env = append(cmd.Env, "MILLRACE_CACHE="+w.path("../cache"))
			if text, err := cmd.CombinedOutput(); err != nil {
				w.t.Fatalf("%v: %s", err, text)
			}
			w.remove("out/model")
			if spoil != nil {
				spoil(w)
			}
		}})
		return &all[len(all)-1]
	}
	flipped := func(w *workshop) {
		text := []byte(w.read(last + "/block.1.weights"))
		text[len(text)/2] ^= 4
		w.write(last+"/block.1.weights", string(text))
	}
	export := "export --checkpoint " + last + " --model model --out out2"
	saved("checkpoint: a bit", "checkpoint verify "+last, "block.1.weights", exitFailed, flipped)
	saved("checkpoint: a bit, exported", export, "block.1.weights", exitFailed, flipped)
	saved("checkpoint: a file is gone", export, "block.1.weights", exitFailed, func(w *workshop) { w.remove(last + "/block.1.weights") })
	saved("checkpoint: a file is cut", export, "block.1.weights", exitFailed, cut(last+"/block.1.weights", 5))
	saved("checkpoint: no manifest", export, "manifest.json", exitFailed, func(w *workshop) { w.remove(last + "/manifest.json") })
	saved("checkpoint: an edited manifest", "checkpoint verify "+last, "manifest", exitFailed, func(w *workshop) { w.change(last+"/manifest.json", `"updates":`, `"updatez":`) })
	saved("checkpoint: an empty manifest", "checkpoint verify "+last, "manifest", exitFailed, func(w *workshop) { w.write(last+"/manifest.json", "") })
	saved("checkpoint: of another model", "export --checkpoint "+last+" --model other --out out2", "other", exitBadRequest, func(w *workshop) {
		w.write("other/config.json", strings.Replace(tinyConfig, `"num_hidden_layers": 2`, `"num_hidden_layers": 3`, 1))
	})
	saved("checkpoint: another learning rate", "train run.yaml --set learning_rate=7", "learning_rate", exitBadRequest, nil)
	saved("checkpoint: another seed", "train run.yaml --set seed=7", "seed", exitBadRequest, nil)
	saved("checkpoint: never resumed", "train run.yaml --set resume=never", "out", exitBadRequest, nil)
	saved("checkpoint: exported over a model", "export --checkpoint "+last+" --model model --out model", "model", exitBadRequest, nil)
	saved("checkpoint: exported to a dangling link", "export --checkpoint "+last+" --model model --out link", "link", exitBadRequest, func(w *workshop) { w.link("nothing", "link") })
	saved("checkpoint: listed although one is damaged", "checkpoint list out", "damaged", exitDone, cut(last+"/block.1.weights", 5))
	fallsBack := saved("checkpoint: a run continues from the one before", "train run.yaml", "step-000002", exitDone, cut(last+"/block.1.weights", 5))
	fallsBack.writes = true
	all = append(all, hostile{name: "output_dir: has other files", line: "train run.yaml --set output_dir=data", want: "step", writes: true, slow: true,
		check: func(w *workshop, _ result) {
			if w.read("data/b.txt") != tinyText {
				w.t.Error("the user's file has changed")
			}
		}})
	return all
}
