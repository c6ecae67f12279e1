package main

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/millrace/millrace/gguf"
)

// secret is in a file next to the model and in the environment; the program must neither show nor copy it.
const secret = "hf_SecretOfTheUser"

// readers are command lines that read a model, with the files of it that each opens. A star stands for any file that
// goes along with the weights, which only verbs that copy the model open.
var readers = []struct{ verb, line, files string }{
	{"train", "train run.yaml --set tokenizer=auto",
		"config.json model.safetensors tokenizer.json tokenizer_config.json * extra"},
	{"plan", "plan run.yaml", "config.json"},
	{"plan --model", "plan --model model --set sequence_len=32", "config.json"},
	{"preview", "preview run.yaml --set tokenizer=auto", "config.json tokenizer.json tokenizer_config.json"},
	{"eval", "eval --model model --data data/a.txt", "config.json model.safetensors tokenizer.json extra"},
	{"generate", "generate --model model --prompt x --max-tokens 2",
		"config.json model.safetensors tokenizer.json generation_config.json"},
	{"chat", "chat --model model", "config.json model.safetensors tokenizer.json chat_template.jinja"},
	{"grad", "grad --model model --tokens tokens.json --out g.safetensors", "config.json model.safetensors"},
	{"bench", "bench --model model --sequence-len 32 --tokens 64 --steps 1 --warmup 0", "config.json"},
	{"export", "export model out2", "config.json model.safetensors README.md *"},
	{"push", "push model me/x --dry-run", "config.json model.safetensors README.md * extra"},
	{"push --all", "push model me/x --dry-run --all", "config.json notes.txt sub/notes.txt"},
	{"export --gguf", "export model --gguf x.gguf",
		"config.json model.safetensors tokenizer.json tokenizer_config.json chat_template.jinja extra"},
}

// carriedFiles lists the names that * stands for.
var carriedFiles = []string{"generation_config.json", "special_tokens_map.json", "added_tokens.json", "tokenizer.model",
	"vocab.json", "merges.txt", "chat_template.jinja", "chat_template.json"}

// ways a file of a model directory can lead elsewhere, or to no end.
var detours = map[string]func(w *workshop, file string) (want string){
	"a link out": func(w *workshop, file string) string {
		w.link(strings.Repeat("../", strings.Count(file, "/"))+"secret.txt", file)
		return "out of the directory"
	},
	"a chain of links out": func(w *workshop, file string) string {
		w.link(w.path("model/harmless"), file)
		w.link("../secret.txt", "model/harmless")
		return "out of the directory"
	},
	"a link to the environment": func(w *workshop, file string) string {
		w.link("/proc/self/environ", file)
		return "out of the directory"
	},
	"a link to an endless file": func(w *workshop, file string) string {
		w.link("/proc/self/pagemap", file)
		return "out of the directory"
	},
	"a pipe": func(w *workshop, file string) string {
		w.pipe(file)
		return "named pipe"
	},
	"a link to a pipe": func(w *workshop, file string) string {
		w.pipe("model/pipe")
		w.link(w.path("model/pipe"), file)
		return "named pipe"
	},
	"a device": func(w *workshop, file string) string {
		if err := syscall.Mknod(w.path(file), syscall.S_IFCHR|0o666, 1<<8|5); err != nil {
			w.t.Skip("only root makes devices: ", err)
		}
		return "device"
	},
	"a directory": func(w *workshop, file string) string {
		w.write(file+"/x", "x")
		return "directory"
	},
}

// furnishHF makes model a directory with a tokenizer.
func (w *workshop) furnishHF() {
	w.t.Helper()
	w.remove("model")
	if err := gguf.Import(context.Background(), "../../gguf/testdata/tiny_llama.gguf", w.path("model"),
		gguf.ImportOptions{}); err != nil {
		w.t.Fatal(err)
	}
	w.write("secret.txt", secret)
	w.write("tokens.json", `{"input_ids": [[1, 2, 3]], "labels": [[-100, 2, 3]]}`)
}

// keptSecret fails the test if the secret has come anywhere.
func keptSecret(w *workshop, r result) {
	if strings.Contains(r.stdout+r.stderr, secret) {
		w.t.Errorf("the secret was shown: %s%s", tail(r.stdout), tail(r.stderr))
	}
	err := filepath.WalkDir(w.dir, func(path string, e fs.DirEntry, err error) error {
		if err != nil || !e.Type().IsRegular() || path == w.path("secret.txt") {
			return err
		}
		text, err := os.ReadFile(path)
		if strings.Contains(string(text), secret) {
			w.t.Errorf("the secret is in %s", path)
		}
		return err
	})
	if err != nil {
		w.t.Error(err)
	}
}

// hostileLinks are directories of models with links and other files that lead out of them, for every verb that reads a
// model, and those in the same words that are good.
func hostileLinks() (all []hostile) {
	for _, r := range readers {
		files := strings.Fields(strings.ReplaceAll(r.files, "*", strings.Join(carriedFiles, " ")))
		for _, file := range files {
			for way, make := range detours {
				// All ways for the first file, two for the others: the code that opens them is the same.
				if file != "config.json" && way != "a link out" && way != "a pipe" {
					continue
				}
				name := file
				if file == "extra" {
					name = "additional_chat_templates/extra.jinja"
				}
				h := bad("model: "+r.verb+", "+name+" is "+way, r.line, name, nil)
				h.env, h.check = []string{"HF_TOKEN=" + secret}, keptSecret
				h.spoil = func(w *workshop) {
					w.furnishHF()
					if file == "extra" {
						w.write("model/additional_chat_templates/good.jinja", "x")
					}
					w.remove("model/" + name)
					want := make(w, "model/"+name)
					h.check = func(w *workshop, got result) {
						keptSecret(w, got)
						if !strings.Contains(got.stderr, want) {
							w.t.Errorf("%q is not in: %s", want, tail(got.stderr))
						}
					}
				}
				all = append(all, h)
			}
		}
	}
	templates := bad("model: a directory of templates is a link out", "eval --model model --data data/a.txt",
		"out of the directory", func(w *workshop) {
			w.furnishHF()
			w.write("private/x.jinja", secret)
			w.link("../private", "model/additional_chat_templates")
		})
	all = append(all, templates)
	for name, text := range map[string]string{"text": "HF_TOKEN=" + secret, "a list": `["` + secret + `"]`,
		"two objects": `{} {"a": "` + secret + `"}`, "cut": `{"a": "` + secret, "empty": ""} {
		for _, line := range []string{"export model out2", "train run.yaml"} {
			verb, _, _ := strings.Cut(line, " ")
			all = append(all, bad("model: "+verb+", vocab.json is "+name, line, "vocab.json", func(w *workshop) {
				w.write("model/vocab.json", text)
			}))
		}
	}
	// Links inside of the directory are followed, and so is a link that the user names.
	for _, r := range readers {
		want := map[string]string{"chat": "", "generate": ""}
		h := hostile{name: "model: " + r.verb + ", links inside", line: r.line, want: want[r.verb], writes: true,
			check: keptSecret, spoil: func(w *workshop) {
				w.furnishHF()
				entries, err := os.ReadDir(w.path("model"))
				if err != nil {
					w.t.Fatal(err)
				}
				if err := os.Mkdir(w.path("model/real"), 0o777); err != nil {
					w.t.Fatal(err)
				}
				for i, e := range entries {
					if err := os.Rename(w.path("model/"+e.Name()), w.path("model/real/"+e.Name())); err != nil {
						w.t.Fatal(err)
					}
					to := "real/" + e.Name()
					if i%2 > 0 {
						to = w.path("model/" + to)
					}
					w.link(to, "model/"+e.Name())
				}
				if err := os.Rename(w.path("model"), w.path("elsewhere")); err != nil {
					w.t.Fatal(err)
				}
				w.link("elsewhere", "model")
			}}
		all = append(all, h)
	}
	return all
}
