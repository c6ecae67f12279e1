//go:build linux

package main

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/xxh3"
)

// A bomb is a small file, or one that packs well, that would take memory, time or other files of the user if a verb
// that reads it had no limit. Each verb meets each bomb in a process of its own with little address space.
type packed struct {
	name  string
	make  func(w *workshop)
	verbs []string // command lines; those after "ok: " may end well, since the verb does not need what is wrong
}

const (
	// bombSpaceKiB is the address space of a process: Go's runtime takes some 0.1 GiB of it, and a heap has holes.
	bombSpaceKiB = 3 << 20
	// bombMemoryBytes bounds what a process has in memory at its peak. A good run takes a seventh.
	bombMemoryBytes = 384 << 20
)

// deepJSON is nested as deeply as a file of a megabyte can be.
var deepJSON = strings.Repeat(`{"a":[`, 1<<20/6)

func bombs() []packed {
	const chat = `{"messages":[{"role":"user","content":"hi"},{"role":"assistant","content":"yo"}]}` + "\n"
	asks := []string{"train chat.yaml", "preview chat.yaml", "chat --model model"}
	template := func(name, source string, verbs ...string) packed {
		return packed{"template: " + name, func(w *workshop) {
			w.write("chat.jsonl", strings.Repeat(chat, 40))
			w.write("chat.yaml", "model: model\ntokenizer: model\ndatasets: [{path: chat.jsonl, type: messages}]\nsequence_len: 32\n"+
				"batch_tokens: 64\nmax_steps: 2\nlearning_rate: 1e-3\noutput_dir: out\nmemory: {host: 128MiB}\n")
			w.write("model/chat_template.jinja", source)
		}, append(slices.Clone(verbs), asks...)}
	}
	const says = `{% for m in messages %}{{ m.content }}{% endfor %}`
	modelVerbs := []string{"train run.yaml", "plan run.yaml", "eval --model model --data data/a.txt",
		"generate --model model --prompt x --max-tokens 1",
		"export model out2", "ok: push model me/x --dry-run"}
	file := func(name, path, text string, verbs ...string) packed {
		return packed{name, func(w *workshop) { w.write(path, text) }, verbs}
	}
	config := func(key, value string) string {
		return regexp.MustCompile(`"`+key+`": [^,}]*`).ReplaceAllString(tinyConfig, `"`+key+`": `+value)
	}
	tokenized := []string{"train tok.yaml", "preview tok.yaml", "generate --model model --prompt x --max-tokens 1", "eval --model model --data data/a.txt",
		"export model --gguf x.gguf"}
	const step = "out/checkpoints/step-000003"
	return []packed{
		template("lines of a long text", `{% set a = '\n' * 20000000 %}{{ a|indent(0)|length }}`+says),
		template("a list of letters", `{% set a = 'a' * 60000000 %}{{ a.split('a')|length }}`+says),
		template("a text that doubles", `{% set n = namespace(a='x') %}{% for i in range(60) %}{% set n.a = n.a + n.a %}{% endfor %}`+says),
		template("loops in loops", `{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}`+says),
		template("brackets", "{{ "+strings.Repeat("(", 1<<19)+" }}"),
		file("config.json: deep", "model/config.json", deepJSON, modelVerbs...),
		file("config.json: a huge model", "model/config.json", config("hidden_size", "9223372036854775807"), modelVerbs...),
		file("config.json: a huge vocabulary", "model/config.json", config("vocab_size", "4611686018427387904"), modelVerbs[:4]...),
		file("config.json: many layers", "model/config.json", config("num_hidden_layers", "2147483647"), modelVerbs[:2]...),
		file("config.json: many values", "model/config.json", `{"a":[`+strings.Repeat("0,", 4<<20)+`0]}`, "plan run.yaml"),
		file("generation_config.json: deep", "model/generation_config.json", deepJSON, "generate --model model --prompt x --max-tokens 1",
			"export model out2"),
		file("safetensors: a long header", "model/model.safetensors", "\xff\xff\xff\xff\xff\xff\xff\x7f{}", "train run.yaml", "generate --model model --prompt x --max-tokens 1",
			"export model out2"),
		{"safetensors: a deep index", func(w *workshop) {
			w.remove("model/model.safetensors")
			w.write("model/model.safetensors.index.json", deepJSON)
		}, []string{"train run.yaml", "export model out2", "ok: push model me/x --dry-run"}},
		file("tokenizer.json: deep", "model/tokenizer.json", deepJSON, tokenized...),
		file("tokenizer.json: a huge id", "model/tokenizer.json",
			`{"version":"1.0","model":{"type":"BPE","vocab":{"a":9223372036854775807},"merges":[]}}`, tokenized...),
		file("tokenizer.json: many lists", "model/tokenizer.json", `{"version":"1.0","model":{"type":"BPE","vocab":{"a":1},"merges":[`+
			strings.Repeat(`["a","b"],`, 1<<20)+`["a","b"]]}}`, tokenized[1]),
		file("tokenizer.json: many values", "model/tokenizer.json", `{"version":"1.0","added_tokens":[`+strings.Repeat("{},", 1<<20)+`{}]}`, tokenized[1]),
		{"GGUF: long tokens in holes", func(w *workshop) { w.gguf("x.gguf", 1900, 65535) }, []string{"import x.gguf imported"}},
		{"GGUF: many tokens", func(w *workshop) { w.gguf("x.gguf", 1<<21, 0) }, []string{"import x.gguf imported"}},
		file("run.yaml: aliases", "run.yaml", "a: &a [x,x,x,x,x,x,x,x,x]\n"+
			"b: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"+
			"d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f]\n",
			"plan run.yaml", "train run.yaml", "convert run.yaml --out run2.yaml"),
		file("run.yaml: deep", "run.yaml", strings.Repeat("[", 100_000), "plan run.yaml", "convert run.yaml --out run2.yaml"),
		{"data: zeros that unpack", func(w *workshop) {
			var b bytes.Buffer
			z := gzip.NewWriter(&b)
			for range 80 {
				_, _ = z.Write(make([]byte, 1<<20))
			}
			z.Close()
			w.write("data/z.txt.gz", b.String())
		}, []string{"train run.yaml --set datasets=[{path:data/z.txt.gz,type:text}]", "preview run.yaml --set datasets=[{path:data/z.txt.gz,type:text}]"}},
		{"manifest: objects without keys", func(w *workshop) { w.manifest(step, `{"files":[`+strings.Repeat("{},", 2<<20)+`{}]}`) },
			[]string{"ok: checkpoint list out", "checkpoint verify " + step, "train run.yaml", "ok: export out out2", "ok: report out --html r.html"}},
		{"manifest: deep", func(w *workshop) { w.manifest(step, `{"numerics":`+deepJSON+`}`) },
			[]string{"ok: checkpoint list out", "checkpoint verify " + step, "train run.yaml", "ok: export out out2"}},
		{"run.json: forged, with links", func(w *workshop) { w.forge() }, []string{"train evil.yaml", "export evil out2", "push evil me/x --dry-run",
			"generate --model evil --prompt x --max-tokens 1", "checkpoint list evil"}},
		{"run.json: deep", func(w *workshop) { w.write("evil/run.json", deepJSON[:1<<19]) }, []string{"ok: train evil.yaml"}},
		file("metrics.jsonl: deep", "out/metrics.jsonl", deepJSON+"\n", "report out --html r.html", "ok: train run.yaml"),
		file("trace: deep", "t.json", deepJSON, "trace t.json"),
		{"model: links out", func(w *workshop) {
			w.remove("model/config.json")
			w.link("../secret.txt", "model/config.json")
		}, modelVerbs},
	}
}

// gguf writes the metadata of a GGUF file with a list of texts of zero bytes, each with another end.
func (w *workshop) gguf(name string, tokens, bytes int) {
	var b []byte
	text := func(s string) {
		b = append(binary.LittleEndian.AppendUint64(b, uint64(len(s))), s...)
	}
	b = append(b, "GGUF\x03\x00\x00\x00"...)
	b = binary.LittleEndian.AppendUint64(b, 0)
	b = binary.LittleEndian.AppendUint64(b, 1)
	text("tokenizer.ggml.tokens")
	b = binary.LittleEndian.AppendUint32(b, 9)
	b = binary.LittleEndian.AppendUint32(b, 8)
	b = binary.LittleEndian.AppendUint64(b, uint64(tokens))
	f, err := os.Create(w.path(name))
	if err != nil {
		w.t.Fatal(err)
	}
	defer f.Close()
	at := int64(len(b))
	if bytes == 0 { // each without a text
		b = append(b, make([]byte, 8*tokens)...)
	}
	if _, err := f.Write(b); err != nil {
		w.t.Fatal(err)
	}
	for i := 0; bytes > 0 && i < tokens; i++ {
		if _, err := f.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(bytes)), at); err != nil {
			w.t.Fatal(err)
		}
		at += 8 + int64(bytes)
		if _, err := f.WriteAt(fmt.Appendf(nil, "%07d", i), at-7); err != nil {
			w.t.Fatal(err)
		}
	}
}

// manifest writes a manifest whose checksum is right.
func (w *workshop) manifest(dir, body string) {
	w.write(dir+"/manifest.json", fmt.Sprintf(`{"format":"millrace checkpoint","version":1,"xxh3":"%016x","manifest":%s}`+"\n",
		xxh3.HashString(body), body))
}

// forge makes evil a directory that says that it is the run in out, with links to what that has.
func (w *workshop) forge() {
	var sealed struct {
		Identity map[string]any `json:"identity"`
	}
	if err := json.Unmarshal([]byte(w.read("out/run.json")), &sealed); err != nil {
		w.t.Fatal(err)
	}
	delete(sealed.Identity, "inode")
	sealed.Identity["dir"] = w.path("evil")
	body, err := json.Marshal(sealed.Identity)
	if err != nil {
		w.t.Fatal(err)
	}
	w.write("evil/run.json", fmt.Sprintf(`{"xxh3":"%016x","identity":%s}`+"\n", xxh3.Hash(body), body))
	w.write("evil/run.yaml", strings.ReplaceAll(w.read("out/run.yaml"), "out", "evil"))
	w.link("../out/checkpoints", "evil/checkpoints")
	w.link("../out/model", "evil/model")
}

// bombFurnished is a directory with a model and its tokenizer, data, a run that was stopped, and a secret.
func bombFurnished(t *testing.T) *workshop {
	t.Helper()
	w := furnish(t, t.TempDir())
	w.furnishHF()
	run := "model: model\ntokenizer: %s\ndatasets: [{path: data/a.txt, type: text}]\nsequence_len: 32\nbatch_tokens: 128\n" +
		"max_steps: 4\nlearning_rate: 1e-3\noutput_dir: %s\nsave: {every: 1, keep: 1}\n"
	w.write("run.yaml", fmt.Sprintf(run, "bytes", "out"))
	w.write("tok.yaml", fmt.Sprintf(run, "model", "out3"))
	w.write("evil.yaml", fmt.Sprintf(run, "bytes", "evil"))
	w.write("model/config.json", tinyConfig)
	w.writeWeights(nil)
	w.write("run3.yaml", strings.ReplaceAll(w.read("run.yaml"), "max_steps: 4", "max_steps: 3"))
	if r := w.exec("train run3.yaml"); r.status != exitDone {
		t.Fatal(r.stderr)
	}
	return w
}

// exec runs the program with little address space.
func (w *workshop) exec(line string) (r bombResult) {
	args := strings.Fields(line)
	cmd := inProcess("notes its peak", args...)
	cmd.Dir = w.dir
	cmd.Env = append(cmd.Env, "MILLRACE_CACHE="+w.path("../cache"), "HF_HUB_OFFLINE=1", "HF_HOME="+w.path("../hf"), "HF_TOKEN="+secret, peakEnv+"="+w.path("../peak"))
	if shell, err := exec.LookPath("sh"); err == nil {
		cmd.Args = append([]string{"sh", "-c", fmt.Sprintf(`ulimit -v %d && exec "$0" "$@"`, bombSpaceKiB), cmd.Path}, cmd.Args[1:]...)
		cmd.Path = shell
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("hi\n"), &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		w.t.Fatal(err)
	}
	var peak int64
	said, err := os.ReadFile(w.path("../peak"))
	if at := bytes.Index(said, []byte("VmHWM:")); err == nil && at >= 0 {
		_, err = fmt.Sscan(string(said[at+len("VmHWM:"):]), &peak)
	}
	if err != nil {
		w.t.Fatal(err)
	}
	return bombResult{result{cmd.ProcessState.ExitCode(), stdout.String(), stderr.String()}, peak << 10,
		cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()}
}

type bombResult struct {
	result
	peakBytes int64
	time      time.Duration // shown, and compared with nothing
}

// owned are the names that a verb of the table may make or change: its own outputs.
func owned(line string) (names []string) {
	for _, name := range []string{"out2", "out3", "imported", "x.gguf", "r.html", "run2.yaml"} {
		if strings.Contains(line, name) {
			names = append(names, name)
		}
	}
	switch {
	case strings.Contains(line, "evil.yaml"):
		return append(names, "evil")
	case strings.HasPrefix(line, "train tok.yaml"):
		return append(names, "out3")
	case strings.HasPrefix(line, "train"):
		return append(names, "out")
	}
	return names
}

// TestBombs prints a table of what each verb makes of each bomb: benchmarks/hostile.md has one.
func TestBombs(t *testing.T) {
	good := bombFurnished(t)
	table := []string{"| bomb | command | status | peak MiB | processor s | answer |", "|---|---|---|---|---|---|"}
	var peak int64
	for i, b := range bombs() {
		if testing.Short() && i%4 > 0 {
			continue
		}
		for _, line := range b.verbs {
			line, mayEndWell := strings.CutPrefix(line, "ok: ")
			w := &workshop{t, filepath.Join(t.TempDir(), "w")}
			if err := os.CopyFS(w.dir, os.DirFS(good.dir)); err != nil {
				t.Fatal(err)
			}
			b.make(w)
			outside := func() map[string]string {
				all := contents(t, w.dir)
				for name := range all {
					first, _, _ := strings.Cut(name, "/")
					if name == "." || slices.Contains(owned(line), first) {
						delete(all, name)
					}
				}
				return all
			}
			before := outside()
			r := w.exec(line)
			what := b.name + ", " + line
			if d := cmp.Diff(before, outside()); d != "" {
				t.Errorf("%s: files outside of its output have changed (-before +after):\n%s", what, d)
			}
			if r.peakBytes > bombMemoryBytes {
				t.Errorf("%s: %d MiB of memory, and %d are allowed", what, r.peakBytes>>20, bombMemoryBytes>>20)
			}
			if isBad := r.status == exitBadRequest || r.status == exitFailed; !isBad && !(mayEndWell && r.status == exitDone) {
				t.Errorf("%s: exit status %d: %s%s", what, r.status, tail(r.stdout), tail(r.stderr))
			}
			if r.status != exitDone && strings.Count(r.stderr, "millrace: ") != 1 {
				t.Errorf("%s: not one line of error: %s", what, tail(r.stderr))
			}
			if bad := foreign.FindString(r.errorLine()); bad != "" || strings.Contains(r.stdout+r.stderr, secret) {
				t.Errorf("%s: %q, or the secret: %s", what, bad, tail(r.stderr))
			}
			answer := strings.NewReplacer(w.dir+"/", "", "|", "/").Replace(r.errorLine())
			if r.status == exitDone {
				answer = "ends well"
			}
			peak = max(peak, r.peakBytes)
			table = append(table, fmt.Sprintf("| %s | `%s` | %d | %d | %.2f | %.120s |", b.name, line, r.status, r.peakBytes>>20,
				r.time.Seconds(), strings.ToValidUTF8(answer, "")))
		}
	}
	t.Logf("at most %d MiB\n%s", peak>>20, strings.Join(table, "\n"))
}
