package train

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/export"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/vfs"
)

// pool has what trials share: models to begin with, made when a trial first asks for them, and data.
type pool struct {
	dir     string
	configs []string // config.json of the golden models
	slow    string   // cache directory of a machine whose host is slow
	other   string   // a run of another project, with a checkpoint of each step
	sources map[data.Type][]data.Source
	held    data.Source
	chat    string // path of a chat template
}

func newPool(t *testing.T) *pool {
	t.Helper()
	p := &pool{dir: t.TempDir(), slow: slowHost(t), sources: map[data.Type][]data.Source{}}
	var err error
	if p.configs, err = filepath.Glob("../model/modeltest/testdata*/*/config.json"); err != nil || len(p.configs) < 40 {
		t.Fatalf("%d golden models, error %v", len(p.configs), err)
	}
	var rows, pairs strings.Builder
	for i := range 14 {
		doc, _ := json.Marshal(map[string]string{"text": fmt.Sprint("wheel ", i, strings.Repeat(" turns the mill.", 1+i%4))})
		rows.Write(append(doc, '\n'))
		doc, _ = json.Marshal(map[string]string{"prompt": fmt.Sprint("what is ", i, "?"), "response": fmt.Sprint("it is ", i)})
		pairs.Write(append(doc, '\n'))
	}
	in := func(name, text string) string {
		path := filepath.Join(p.dir, name)
		write(t, path, text)
		return path
	}
	p.sources[data.Text] = []data.Source{{Path: in("a.jsonl", rows.String()), Type: data.Text},
		{Path: in("b.txt", strings.Repeat("another text.\nwith lines.\n", 6)), Type: data.Text, Lines: true, Weight: 1.5}}
	p.sources[data.PromptResponse] = []data.Source{{Path: in("pairs.jsonl", pairs.String()), Type: data.PromptResponse}}
	for _, kind := range []data.Type{data.Messages, data.ShareGPT} {
		p.sources[kind] = []data.Source{writeDialogs(t, kind, dialogs(9))}
	}
	p.held = data.Source{Path: in("held.jsonl", `{"text": "a brook drives it."}`+"\n"+`{"text": "no wheel."}`+"\n"), Type: data.Text}
	p.chat = in("chat.jinja", turnTemplate)
	c := smallConfig(t)
	c.Model, c.Datasets = p.model(t, "rows", tensor.F32, 3), p.sources[data.Text][:1]
	c.SequenceLen, c.BatchTokens, c.MaxSteps, c.Seed = 32, 32, 4, 1_000_003
	c.OutputDir, c.Save = filepath.Join(p.dir, "other", "run"), runfile.Save{Every: 1}
	if _, err := Train(t.Context(), c, Options{Env: newEnv(t)}); err != nil {
		t.Fatal(err)
	}
	p.other = c.OutputDir
	return p
}

// families are the names of models: a golden one, or one of this package's tests.
func (p *pool) families() []string {
	return append(slices.Clone(p.configs), "patchwork", "glm", "hybrid", "rows", "dense")
}

// model is the directory of a random model with a type and a seed.
func (p *pool) model(t *testing.T, family string, as tensor.DType, seed uint64) string {
	t.Helper()
	base := filepath.Base(filepath.Dir(family))
	if family == base || base == "." {
		base = family
	}
	dir := filepath.Join(p.dir, fmt.Sprint(base, "-", as, "-", seed))
	if vfs.Exists(dir) {
		return dir
	}
	if as != tensor.F32 {
		_, err := export.HuggingFace(t.Context(), patchworkEnv(t), export.Options{Model: p.model(t, family, tensor.F32, seed),
			Dir: dir, DType: as})
		if err != nil {
			t.Fatal(err)
		}
		return dir
	}
	switch family {
	case "patchwork":
		must(t, os.CopyFS(dir, os.DirFS(writePatchwork(t))))
	case "glm":
		must(t, os.CopyFS(dir, os.DirFS(writeGLM(t, [2]int{1, 4}, ""))))
	default:
		mkdir(t, dir)
		doc := map[string]any{}
		change, isOwn := map[string]map[string]any{"hybrid": hybridConfig, "rows": rowsConfig, "dense": nil}[family]
		if isOwn {
			must(t, json.Unmarshal([]byte(readText(t, filepath.Join(writeConfig(t, change), "config.json"))), &doc))
		} else {
			must(t, json.Unmarshal([]byte(readText(t, family)), &doc))
		}
		decoder := doc
		if inner, is := doc["text_config"].(map[string]any); is {
			decoder = inner
		}
		for key, value := range map[string]any{"vocab_size": 300, "vocab_size_per_layer_input": 300, "max_position_embeddings": 256,
			"n_positions": 256} {
			if _, has := decoder[key]; has && !isOwn {
				decoder[key] = value
			}
		}
		if _, has := decoder["vocab_size"]; !has {
			decoder["vocab_size"] = 300
		}
		text, err := json.Marshal(doc)
		must(t, err)
		write(t, filepath.Join(dir, "config.json"), string(text))
		writeWeights(t, dir, seed)
	}
	return dir
}

// patchworkEnv is newEnv with the made-up family.
func patchworkEnv(t testing.TB) *session.Env {
	env := newEnv(t)
	env.Tests.ProgramBytes, env.Families = 1, []model.Family{modeltest.Patchwork}
	return env
}

// anotherModel has the configuration of a model, and other weights.
func (p *pool) anotherModel(t *testing.T, dir string) string {
	t.Helper()
	to := dir + "-others"
	if vfs.Exists(to) {
		return to
	}
	must(t, os.CopyFS(to, os.DirFS(dir)))
	name := filepath.Join(to, "model.safetensors")
	text := []byte(readText(t, name))
	for i := len(text) - 40; i < len(text); i += 2 {
		text[i] ^= 1
	}
	write(t, name, string(text))
	return to
}

func readText(t testing.TB, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	must(t, err)
	return string(text)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// draw is a random configuration, which may not be one that trains.
func (p *pool) draw(t *testing.T, r *rand.Rand) runfile.Config {
	c := runfile.Defaults()
	c.Tokenizer, c.Seed, c.Save.Minutes = "bytes", r.Uint64N(1000), 0
	families := p.families()
	as := []tensor.DType{tensor.F32, tensor.F32, tensor.BF16, tensor.F16}[r.IntN(4)]
	c.Model = p.model(t, families[r.IntN(len(families))], as, 3)
	if r.IntN(6) == 0 && as == tensor.F32 {
		c.Init = "random"
	}
	c.Precision = []runfile.Precision{{Compute: "f32", Master: "f32"}, {Compute: "bf16", Master: "split"},
		{Compute: "bf16", Master: "split24"}}[r.IntN(3)]
	c.Precision.Moments = []string{"f32", "f32", "8bit", "8bit", "8+4", "4bit"}[r.IntN(6)]

	rows := []int{1, 2, 2, 4}[r.IntN(4)]
	c.SequenceLen = []int{32, 64}[r.IntN(2)]
	c.BatchTokens = rows * c.SequenceLen
	if r.IntN(5) > 0 {
		c.Numerics = runfile.Sizes{MicroBatch: runfile.Auto(1 + r.IntN(min(rows, 2))),
			HeadChunk: runfile.Auto([]int{16, 32, 512}[r.IntN(3)]), BlockChunk: runfile.Auto([]int{0, 8, 32, 256}[r.IntN(4)])}
		if n := []int{1, 2, rows}[r.IntN(3)]; r.IntN(2) == 0 && rows/int(c.Numerics.MicroBatch)%n == 0 {
			c.Numerics.Groups = runfile.Auto(n)
			if n > 1 && r.IntN(2) == 0 {
				c.Numerics.Exchange = runfile.ExchangeBF16
			}
		}
	}
	c.LearningRate = []float64{1e-3, 3e-3, 1e-2}[r.IntN(3)]
	c.LRScheduler = []optim.Shape{"cosine", "linear", "constant", "wsd"}[r.IntN(4)]
	c.MinRate = []float64{0, 0, 1e-4}[r.IntN(3)]
	if c.LRScheduler == "constant" {
		c.MinRate = 0
	}
	c.WarmupSteps = r.IntN(3)
	c.WeightDecay, c.MaxGradNorm = []float64{0, 0.01, 0.3}[r.IntN(3)], []float64{0, 0.1, 1}[r.IntN(3)]
	if r.IntN(8) == 0 {
		c.RouterAuxLossCoef = 0.01
	}

	c.MaxSteps = 2 + r.IntN(5)
	switch kind := []data.Type{data.Text, data.Text, data.PromptResponse, data.Messages, data.ShareGPT}[r.IntN(5)]; kind {
	case data.Text:
		c.Datasets = slices.Clone(p.sources[kind][:1+r.IntN(2)])
	default:
		c.Datasets = p.sources[kind]
		if kind != data.PromptResponse || r.IntN(2) == 0 {
			c.ChatTemplate = p.chat
			c.SequenceLen, c.BatchTokens = 64, rows*64
		}
		c.TrainOnPrompt = r.IntN(3) == 0
	}
	c.Overlong = []string{"auto", "split", "truncate"}[r.IntN(3)]
	if r.IntN(4) == 0 {
		c.MaxSteps, c.Epochs = 0, []float64{0.5, 1, 1.3}[r.IntN(3)]
	}

	switch r.IntN(4) {
	case 0:
		c.TrainOnly = []string{"*.1.*"}
	case 1:
		c.Groups = [][]optim.Group{{{Match: "*embed*", Freeze: true}}, {{Match: "*norm*", Freeze: true}}, {{Match: "*.0.*", Freeze: true}},
			{{Match: "*.1.*", LearningRate: optim.Given(1e-3)}}}[r.IntN(4)]
	}

	switch r.IntN(3) {
	case 0:
		c.Eval = runfile.Eval{Datasets: []data.Source{p.held}, Every: r.IntN(3)}
	case 1:
		c.ValSize, c.Eval.Every = 2, r.IntN(3)
	}
	if c.Eval.Every > 0 {
		c.Stop.Patience = []int{0, 0, 1, 2}[r.IntN(4)]
	}
	if r.IntN(6) == 0 && c.ChatTemplate == "auto" {
		c.Samples = someSamples(1 + r.IntN(3))
		c.Samples.MaxTokens = 2
	}
	return c
}

func hasEval(c *runfile.Config) bool { return c.ValSize > 0 || len(c.Eval.Datasets) > 0 }

// frozenBytes checks that the frozen tensors of a model that a run has written have the bytes of the model that it
// began with, where both are of one type.
func frozenBytes(t *testing.T, c *runfile.Config, dir string) {
	t.Helper()
	if c.Init == "random" || len(c.TrainOnly) == 0 && len(c.Groups) == 0 {
		return
	}
	was, is := tensorsOf(t, c.Model), tensorsOf(t, dir)
	groups := optim.Groups{All: c.Groups, TrainOnly: c.TrainOnly}
	for name, bytes := range is {
		before, has := was[name]
		if _, trained := groups.Of(name); trained || !has || strings.Fields(before)[0] != strings.Fields(bytes)[0] {
			continue
		}
		if before != bytes {
			t.Errorf("%s is frozen, and differs from that of the model that the run began with", name)
			return
		}
	}
}
