package train

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/hf/hub/hubtest"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
)

// tokensFile writes the documents of a golden batch as sequences. In a golden batch a target is the next token of its
// document or -1; the label of a document's first token does not matter.
func tokensFile(t testing.TB, b modeltest.Batch) (path string, sequences [][3]int) {
	t.Helper()
	var ids, labels [][]int32
	for row, m := range b {
		for first := 0; first < len(m.IDs); first = int(m.DocEnd[first]) {
			end := int(m.DocEnd[first])
			l := []int32{data.Ignore}
			for _, target := range m.Targets[first : end-1] {
				if target < 0 {
					target = data.Ignore
				}
				l = append(l, target)
			}
			ids, labels = append(ids, m.IDs[first:end]), append(labels, l)
			sequences = append(sequences, [3]int{row, first, end})
		}
	}
	doc, err := json.Marshal(map[string]any{"input_ids": ids, "labels": labels})
	if err != nil {
		t.Fatal(err)
	}
	path = filepath.Join(t.TempDir(), "tokens.json")
	write(t, path, string(doc))
	return path, sequences
}

// readFile reads a safetensors file of F32.
func readFile(t testing.TB, path string) map[string][]float32 {
	t.Helper()
	doc, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	n := binary.LittleEndian.Uint64(doc)
	var header map[string]json.RawMessage
	if err := json.Unmarshal(doc[8:8+n], &header); err != nil {
		t.Fatal(err)
	}
	all := map[string][]float32{}
	for name, raw := range header {
		var e struct {
			DType   string
			Offsets [2]int `json:"data_offsets"`
		}
		if name == "__metadata__" {
			continue
		}
		if err := json.Unmarshal(raw, &e); err != nil || e.DType != "F32" {
			t.Fatalf("%s: %s (%v)", name, raw, err)
		}
		x := make([]float32, (e.Offsets[1]-e.Offsets[0])/4)
		if _, err := binary.Decode(doc[8+int(n)+e.Offsets[0]:], binary.LittleEndian, x); err != nil {
			t.Fatal(err)
		}
		all[name] = x
	}
	return all
}

// computes are the types that the law of budgets is tried with. Further families are compared with PyTorch alone: what
// they have that others lack is in blocks, and package stream holds those to its laws.
func computes(t *testing.T, variant string) []string {
	if slices.Contains(modeltest.FamilyVariants(t), variant) {
		return nil
	}
	return []string{"f32", "bf16"}
}

// Loss, gradients and logits agree with PyTorch through the files, and a device budget changes no bit of them.
func TestGradientsOfGoldenModels(t *testing.T) {
	for _, variant := range modeltest.Variants(t) {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			g := modeltest.Load(t, variant)
			tokens, sequences := tokensFile(t, g.First)
			dir := t.TempDir()
			o := GradOptions{Model: g.Dir, Tokens: tokens, Out: filepath.Join(dir, "bound"), Logits: true}
			sum, err := Gradients(context.Background(), newEnv(t), o)
			if err != nil {
				t.Fatal(err)
			}
			got := readFile(t, o.Out)
			d := math.Abs(sum.Loss - float64(g.Loss))
			if !(d <= modeltest.WithinLogits) || got["loss"][0] != float32(sum.Loss) {
				t.Errorf("loss %v and %v, PyTorch %v", sum.Loss, got["loss"], g.Loss)
			}
			for name, want := range g.Grads {
				if d := want.RelDiff(got[name]); !(d <= modeltest.WithinGradients) {
					t.Errorf("%s: gradient differs by %.2g of its norm", name, d)
				}
			}
			if want := 1 + len(g.Grads) + len(sequences); len(got) != want || sum.Tensors != len(g.Grads) {
				t.Errorf("%d tensors in the file, %d of them gradients; want %d and %d", len(got), sum.Tensors, want, len(g.Grads))
			}
			for i, s := range sequences {
				want := g.Logits[s[0]][s[1]*g.Vocab : s[2]*g.Vocab]
				largest, diff := 0.0, 0.0
				for j, x := range want {
					largest = max(largest, math.Abs(float64(x)))
					diff = max(diff, math.Abs(float64(x-got[logitsName(i)][j])))
				}
				if !(diff <= modeltest.WithinLogits*largest) {
					t.Errorf("sequence %d: logits differ by %.2g, largest is %.2g", i, diff, largest)
				}
			}
			for _, compute := range computes(t, variant) {
				var bits [2][]byte
				for i, m := range []runfile.Memory{{}, budget(t, "2MiB")} {
					o.Compute, o.Memory, o.Out = compute, m, filepath.Join(dir, compute)
					if _, err := Gradients(context.Background(), newEnv(t), o); err != nil {
						t.Fatal(err)
					}
					if bits[i], err = os.ReadFile(o.Out); err != nil {
						t.Fatal(err)
					}
				}
				if !bytes.Equal(bits[0], bits[1]) {
					t.Errorf("%s: a device budget changes the result", compute)
				}
			}
		})
	}
}

func TestGradientsRefuses(t *testing.T) {
	g := modeltest.Load(t, "llama")
	for name, c := range map[string]struct{ doc, want string }{
		"no file":     {"", "no such file"},
		"not json":    {"{", "write {"},
		"two objects": {`{"input_ids": [[1, 2]], "labels": [[1, 2]]} {}`, "after"},
		"other key":   {`{"input_ids": [[1, 2]], "labels": [[1, 2]], "attention_mask": [[1, 1]]}`, "attention_mask"},
		"no labels":   {`{"input_ids": [[1, 2]]}`, "as many"},
		"empty":       {`{"input_ids": [[]], "labels": [[]]}`, "sequence 0"},
		"lengths":     {`{"input_ids": [[1, 2], [3]], "labels": [[1, 2], [3, 4]]}`, "sequence 1"},
		"negative":    {`{"input_ids": [[1, -2]], "labels": [[1, 2]]}`, "negative"},
		"vocabulary":  {`{"input_ids": [[1, 2]], "labels": [[1, 900]]}`, "vocabulary"},
		"no targets":  {`{"input_ids": [[1, 2]], "labels": [[1, -100]]}`, "no label counts"},
		"long":        {`{"input_ids": [[` + strings.Repeat("1,", 5000) + `1]], "labels": [[` + strings.Repeat("1,", 5000) + `1]]}`, "shorten"},
		"fraction":    {`{"input_ids": [[1.5, 2]], "labels": [[1, 2]]}`, "1.5"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			tokens := filepath.Join(dir, "tokens.json")
			if c.doc != "" {
				write(t, tokens, c.doc)
			}
			out := filepath.Join(dir, "out", "grads")
			_, err := Gradients(context.Background(), newEnv(t), GradOptions{Model: g.Dir, Tokens: tokens, Out: out})
			refused(t, err, c.want)
			if files(t, filepath.Dir(out)) != nil {
				t.Error("something was written")
			}
		})
	}
}

// refused fails unless err is one line that says want and is marked as a bad request.
func refused(t testing.TB, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Fatalf("error %q, want one line with %q", err, want)
	}
	if !errors.Is(err, blame.ErrRequest) {
		t.Errorf("not marked as a bad request: %v", err)
	}
}

func TestEvaluate(t *testing.T) {
	dir := writeModel(t, nil)
	o := EvalOptions{Model: dir, Data: []data.Source{{Path: corpus(t), Type: data.Text}}, Tokenizer: "bytes", Compute: "f32", SequenceLen: 128}
	l, err := Evaluate(context.Background(), newEnv(t), o)
	if err != nil {
		t.Fatal(err)
	}
	// A random model is as surprised by each of its 320 tokens, about.
	if l.TargetTokens < 1000 || math.Abs(l.Loss-math.Log(320)) > 1 || math.Abs(l.Perplexity-math.Exp(l.Loss)) > 1e-9 {
		t.Errorf("%+v", l)
	}
	o.Memory = budget(t, "4MiB")
	streamed, err := Evaluate(context.Background(), newEnv(t), o)
	if err != nil || *streamed != *l {
		t.Errorf("streamed %+v (%v), bound %+v", streamed, err, l)
	}
	o.Compute = "bf16"
	half, err := Evaluate(context.Background(), newEnv(t), o)
	if err != nil || math.Abs(half.Loss-l.Loss) > 0.01*l.Loss {
		t.Errorf("bf16 %+v (%v), f32 %+v", half, err, l)
	}
}

func TestGenerate(t *testing.T) {
	dir := writeModel(t, nil)
	o := GenerateOptions{Model: dir, Prompt: "the wheel", Tokenizer: "bytes", MaxTokens: 12, Compute: "f32"}
	run := func(change func(*GenerateOptions)) *Generated {
		t.Helper()
		o := o
		change(&o)
		var out bytes.Buffer
		o.Out = &out
		g, err := Generate(context.Background(), newEnv(t), o)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.ToValidUTF8(out.String(), "?"); strings.ReplaceAll(got, "?", "") != strings.ReplaceAll(strings.ReplaceAll(g.Text, "\uFFFD", ""), "?", "") {
			t.Errorf("printed %q, text is %q", got, g.Text)
		}
		return g
	}
	greedy := run(func(*GenerateOptions) {})
	if greedy.PromptTokens != 9 || len(greedy.Tokens) != 12 && greedy.Finish != FinishStop {
		t.Errorf("%+v", greedy)
	}
	// Greedy tokens are the largest logits of `grad --logits`.
	ids := append([]int32(nil), tokenizerBytes(o.Prompt)...)
	ids = append(ids, greedy.Tokens...)
	doc, _ := json.Marshal(map[string]any{"input_ids": [][]int32{ids}, "labels": [][]int32{ids}})
	tokens, out := filepath.Join(t.TempDir(), "tokens.json"), filepath.Join(t.TempDir(), "grads")
	write(t, tokens, string(doc))
	if _, err := Gradients(context.Background(), newEnv(t), GradOptions{Model: dir, Tokens: tokens, Out: out, Logits: true}); err != nil {
		t.Fatal(err)
	}
	logits := readFile(t, out)["logits.0"]
	for i, id := range greedy.Tokens {
		row := logits[(greedy.PromptTokens-1+i)*320:][:257]
		if best := slices.Index(row, slices.Max(row)); int32(best) != id {
			t.Errorf("token %d is %d, the largest logit is that of %d", i, id, best)
		}
	}
	hot := func(o *GenerateOptions) { o.Temperature, o.TopP, o.Seed = 1.5, 0.9, 7 }
	a, b := run(hot), run(hot)
	if !slices.Equal(a.Tokens, b.Tokens) {
		t.Errorf("the same seed gives %v and %v", a.Tokens, b.Tokens)
	}
	if c := run(func(o *GenerateOptions) { hot(o); o.Seed = 8 }); slices.Equal(a.Tokens, c.Tokens) {
		t.Errorf("two seeds give %v", a.Tokens)
	}
	if c := run(func(o *GenerateOptions) { hot(o); o.Memory = budget(t, "2MiB") }); !slices.Equal(a.Tokens, c.Tokens) {
		t.Errorf("streamed: %v, bound: %v", c.Tokens, a.Tokens)
	}
	if c := run(func(o *GenerateOptions) { hot(o); o.TopK = 1 }); !slices.Equal(greedy.Tokens, c.Tokens) {
		t.Errorf("top 1: %v, greedy: %v", c.Tokens, greedy.Tokens)
	}
	// It ends where a generation config says, and where the model has no more positions.
	write(t, filepath.Join(dir, "generation_config.json"), `{"eos_token_id": [300, `+string(mustJSON(greedy.Tokens[3]))+`]}`)
	at := slices.Index(greedy.Tokens, greedy.Tokens[3])
	if c := run(func(*GenerateOptions) {}); c.Finish != FinishStop || !slices.Equal(c.Tokens, greedy.Tokens[:at]) {
		t.Errorf("%+v, want the first %d tokens of %v", c, at, greedy.Tokens)
	}
	write(t, filepath.Join(dir, "generation_config.json"), `{"eos_token_id": null}`)
	if c := run(func(o *GenerateOptions) { o.Prompt = strings.Repeat("x", 126) }); c.Finish == FinishLength && len(c.Tokens) != 3 {
		t.Errorf("%+v: 126 tokens of 128 positions have 3 that follow", c)
	}
	for want, change := range map[string]func(*GenerateOptions){
		"shorten":       func(o *GenerateOptions) { o.Prompt = strings.Repeat("x", 128) },
		"empty":         func(o *GenerateOptions) { o.Prompt = "" },
		"--max-tokens":  func(o *GenerateOptions) { o.MaxTokens = 0 },
		"--temperature": func(o *GenerateOptions) { o.Temperature = math.NaN() },
		"--top-p":       func(o *GenerateOptions) { o.TopP = 1.5 },
		"tokenizer":     func(o *GenerateOptions) { o.Tokenizer = "auto" },
		"compute":       func(o *GenerateOptions) { o.Compute = "fp8" },
	} {
		o := o
		change(&o)
		_, err := Generate(context.Background(), newEnv(t), o)
		refused(t, err, want)
	}
}

func tokenizerBytes(s string) []int32 {
	var ids []int32
	for _, b := range []byte(s) {
		ids = append(ids, int32(b))
	}
	return ids
}

func mustJSON(v any) []byte {
	doc, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return doc
}

// The choices follow the probabilities that temperature, top k and top p leave.
func TestPickerFollowsProbabilities(t *testing.T) {
	logits := []float32{float32(math.Log(0.5)), float32(math.Log(0.2)), float32(math.Log(0.3)), 50}
	for name, c := range map[string]struct {
		temperature float64
		topK        int
		topP        float64
		want        []float64
	}{
		"all":         {1, 0, 0, []float64{0.5, 0.2, 0.3}},
		"--top-k":     {1, 2, 1, []float64{0.625, 0, 0.375}},
		"--top-p":     {1, 0, 0.75, []float64{0.625, 0, 0.375}},
		"top p exact": {1, 0, 0.4, []float64{1, 0, 0}},
		"cold":        {0.5, 0, 0, []float64{0.25 / 0.38, 0.04 / 0.38, 0.09 / 0.38}},
		"greedy":      {0, 0, 0, []float64{1, 0, 0}},
	} {
		t.Run(name, func(t *testing.T) {
			p := newPicker(GenerateOptions{Temperature: c.temperature, TopK: c.topK, TopP: c.topP, Seed: 5}, 3)
			const n = 20000
			counts := make([]float64, 3)
			for at := range n {
				id, err := p.token(logits, 0, at)
				if err != nil {
					t.Fatal(err)
				}
				counts[id]++
			}
			for id, want := range c.want {
				// Five standard deviations.
				if d := math.Abs(counts[id]/n - want); d > 5*math.Sqrt(want*(1-want)/n) {
					t.Errorf("token %d: %.4f of the choices, want %.4f", id, counts[id]/n, want)
				}
			}
		})
	}
	least := float32(math.Inf(-1))
	for _, logits := range [][]float32{{0, float32(math.NaN())}, {least, least}} {
		if id, err := newPicker(GenerateOptions{Temperature: 1, TopP: 0.9}, 2).token(logits, 0, 0); err == nil {
			t.Errorf("of %v token %d is chosen", logits, id)
		}
	}
}

func TestPreview(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "qa.jsonl")
	write(t, path, `{"prompt":"ab","response":"cde"}`+"\n"+`{"prompt":"`+strings.Repeat("x", 20)+`","response":"y"}`+"\n")
	c := runfile.Defaults()
	c.Model, c.Tokenizer, c.SequenceLen = writeConfig(t, nil), "bytes", 16
	c.Datasets = []data.Source{{Path: path, Type: data.PromptResponse}}
	var shown []PreviewExample
	sum, err := Preview(context.Background(), newEnv(t), &c, 1, func(e PreviewExample) error { shown = append(shown, e); return nil })
	if err != nil {
		t.Fatal(err)
	}
	want := PreviewSummary{Documents: 2, Tokens: 7 + 23, TargetTokens: 4 + 2, LongestDoc: 23, Truncated: 1, CutTokens: 7,
		Packed: 2, Rows: 2, Efficiency: 23.0 / 32, EndedTurns: 2,
		Lengths:   data.Lengths{P50: 7, P90: 23, P99: 23, Over: [3]data.LengthOver{{Tokens: 2048}, {Tokens: 4096}, {Tokens: 8192}}},
		Turns:     data.TurnCounts{Trained: 2, Last: map[int32]int64{256: 2}, Final: 2, FinalLast: map[int32]int64{256: 2}},
		TurnLines: []string{"2 turns of the assistant: each ends with a token at which a generation ends"}}
	if !reflect.DeepEqual(*sum, want) {
		t.Errorf("%+v, want %+v", *sum, want)
	}
	if len(shown) != 1 || !slices.Equal(shown[0].InputIDs, []int32{'a', 'b', '\n', 'c', 'd', 'e', 256}) ||
		!slices.Equal(shown[0].Labels, []int32{-100, -100, -100, 'c', 'd', 'e', 256}) ||
		!slices.Equal(shown[0].Pieces, []PreviewPiece{{"ab\n", false}, {"cde<|endoftext|>", true}}) {
		t.Errorf("shown %+v", shown)
	}
	stop := errors.New("enough")
	if _, err := Preview(context.Background(), newEnv(t), &c, 0, func(PreviewExample) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("error %v", err)
	}
}

// A run trains on a data set of the hub, says which commit, and finds it again without the hub.
func TestTrainOnTheHub(t *testing.T) {
	server, _ := hubtest.Start(t)
	train := strings.Repeat(`{"text": "the wheel turns. the wheel turns."}`+"\n", 40)
	server.Repos["datasets/org/wheels"] = &hubtest.Repo{Files: map[string]string{"train.jsonl": train, "test.jsonl": `{"text": "the wheel"}` + "\n"}}
	c := smallConfig(t)
	t.Chdir(t.TempDir())
	c.Datasets = []data.Source{{Path: "org/wheels", Type: data.Text}}
	c.Eval.Datasets = []data.Source{{Path: "org/wheels", Type: data.Text, Split: "test"}}
	var said strings.Builder
	env := newEnv(t)
	env.Progress = &said
	if _, err := Train(context.Background(), c, Options{Env: env}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"dataset org/wheels: train.jsonl at commit " + hubtest.Commit, "dataset org/wheels: test.jsonl at commit "} {
		if !strings.Contains(said.String(), want) {
			t.Errorf("it does not say %q: %s", want, said.String())
		}
	}
	t.Setenv("HF_HUB_OFFLINE", "1")
	again, err := runfile.Read(filepath.Join(c.OutputDir, "run.yaml"), []string{"output_dir=" + filepath.Join(t.TempDir(), "again")})
	if err != nil {
		t.Fatal(err)
	}
	sum, err := Train(context.Background(), again, Options{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	sameModel(t, sum.Model, filepath.Join(c.OutputDir, "model"))
	// The resolved run file names the commit: it reads the same rows after the branch has moved.
	if got := again.Datasets[0]; got.Path != "org/wheels" || got.Revision != hubtest.Commit || again.Eval.Datasets[0].Revision != hubtest.Commit {
		t.Errorf("run.yaml has %+v", got)
	}
	// A run that had saved nothing starts over, whether its file names the commit or not.
	for _, name := range []string{"model", "metrics.jsonl"} {
		if err := os.RemoveAll(filepath.Join(c.OutputDir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Train(context.Background(), c, Options{Env: newEnv(t)}); err != nil {
		t.Error(err)
	}
	again.Datasets[0].Split = "dev"
	_, err = Preview(context.Background(), newEnv(t), again, 1, func(PreviewExample) error { return nil })
	if !errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), `no split "dev"; it has train, test`) {
		t.Errorf("a wrong split: %v", err)
	}
	// That the hub cannot be reached is no fault of the request.
	t.Setenv("HF_HUB_OFFLINE", "")
	t.Setenv("HF_ENDPOINT", "http://127.0.0.1:1")
	c.Datasets[0].Path = "org/others"
	_, err = Preview(context.Background(), newEnv(t), c, 1, func(PreviewExample) error { return nil })
	if err == nil || errors.Is(err, blame.ErrRequest) || !strings.Contains(err.Error(), "dataset org/others: ") || !strings.Contains(err.Error(), "cannot be reached") {
		t.Errorf("without a network: %v", err)
	}
}

// A plan needs config.json only.
func TestPlanFor(t *testing.T) {
	c := runfile.Defaults()
	c.Model, c.SequenceLen, c.BatchTokens = writeConfig(t, nil), 64, 256
	c.Datasets = []data.Source{{Path: "not read", Type: data.Text}}
	p, err := PlanFor(context.Background(), &c, PlanOptions{Env: newEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	if p.Plan.HostBytes <= 0 || p.Plan.Predicted.StepSeconds <= 0 || p.Device.Name == "" || p.Machine.Check() != nil {
		t.Errorf("%+v", p)
	}
	c.Memory.Host = budget(t, "1MiB").Device
	_, err = PlanFor(context.Background(), &c, PlanOptions{Env: newEnv(t)})
	refused(t, err, "memory.host")
	c.Memory = budget(t, "1kB")
	_, err = PlanFor(context.Background(), &c, PlanOptions{Env: newEnv(t)})
	refused(t, err, "memory.device")
}

// A plan for this machine says when that has less memory than the run takes; a named machine is another one.
func TestPlanForLessMemoryThanItTakes(t *testing.T) {
	c := runfile.Defaults()
	c.Model, c.SequenceLen, c.BatchTokens = "none", 64, 256
	c.Datasets = []data.Source{{Path: "not read", Type: data.Text}}
	c.Memory.Host = budget(t, "900TiB").Device
	p, err := PlanFor(context.Background(), &c, PlanOptions{Env: newEnv(t), Shape: "smollm2-135m"})
	if err != nil {
		t.Fatal(err)
	}
	if p.AvailableBytes <= 0 {
		t.Skip("this system does not tell what memory there is")
	}
	p.AvailableBytes = p.Plan.ProcessBytes()
	if got := p.Lacks(); got != "" {
		t.Errorf("with just as much: %q", got)
	}
	p.AvailableBytes--
	if got := p.Lacks(); !strings.Contains(got, "this machine has only") || !strings.Contains(got, "memory.host") {
		t.Errorf("with less: %q", got)
	}
	p, err = PlanFor(context.Background(), &c, PlanOptions{Env: newEnv(t), Shape: "smollm2-135m",
		Machine: "rtx3090-pc-24gb-64gb"})
	if err != nil || p.Lacks() != "" {
		t.Errorf("a named machine: %v, %q", err, p.Lacks())
	}
}

// A size of the user's is tried even beyond what is available; what the machine shows is the limit of auto, which
// says so where that grows.
func TestMemoryThatGrows(t *testing.T) {
	for _, c := range []struct {
		host  string // memory.host
		grows bool   // as the environment says
		tried bool
		notes int
	}{{"auto", false, false, 0}, {"900TiB", false, true, 0}, {"auto", true, true, 1}, {"900TiB", true, true, 0}} {
		env := newEnv(t)
		var said strings.Builder
		env.Progress, env.MemoryGrows = &said, c.grows
		config := smallConfig(t)
		config.Memory.Host = budget(t, c.host).Device
		for range 2 {
			p, err := PlanFor(context.Background(), config, PlanOptions{Env: env})
			if err != nil {
				t.Fatal(err)
			}
			if c.grows && p.AvailableBytes != 0 {
				t.Errorf("%+v: %d bytes are the limit of a machine that grows", c, p.AvailableBytes)
			}
		}
		if env.Accounts.GrowsOnUse() != c.tried || strings.Count(said.String(), "set memory.host to a size") != c.notes {
			t.Errorf("%+v: %v, and said %q", c, env.Accounts.GrowsOnUse(), said.String())
		}
	}
}

// A budget that no sizes fit is refused before data are read.
func TestTooLittleMemoryComesBeforeTheData(t *testing.T) {
	c := smallConfig(t)
	c.Datasets[0].Path = filepath.Join(t.TempDir(), "not there.jsonl")
	c.Memory.Host = budget(t, "1MiB").Device
	_, err := Train(context.Background(), c, Options{Env: newEnv(t)})
	refused(t, err, "memory.host")
	c.Memory = budget(t, "1kB")
	_, err = Train(context.Background(), c, Options{Env: newEnv(t)})
	refused(t, err, "makes it fit: memory.device=")
	c.Memory = runfile.Memory{}
	_, err = Train(context.Background(), c, Options{Env: newEnv(t)})
	refused(t, err, "not there.jsonl")
}

func TestReexport(t *testing.T) {
	dir := writeModel(t, nil)
	write(t, filepath.Join(dir, "generation_config.json"), `{"eos_token_id": 256}`)
	half, full := filepath.Join(t.TempDir(), "half"), filepath.Join(t.TempDir(), "full")
	env := newEnv(t)
	if _, err := Export(context.Background(), env, ExportOptions{Model: dir, Dir: half, DType: tensor.BF16}); err != nil {
		t.Fatal(err)
	}
	if _, err := Export(context.Background(), env, ExportOptions{Model: half, Dir: full, DType: tensor.F32}); err != nil {
		t.Fatal(err)
	}
	a, b := open(t, dir), open(t, full)
	for _, name := range a.Names() {
		info, _ := a.Info(name)
		if again, ok := b.Info(name); !ok || again.DType != tensor.F32 || !slices.Equal(again.Shape, info.Shape) {
			t.Fatalf("%s: %+v", name, again)
		}
		x, y := make([]float32, info.Shape.Elems()), make([]float32, info.Shape.Elems())
		if err := errors.Join(a.ReadF32(name, x, 0), b.ReadF32(name, y, 0)); err != nil {
			t.Fatal(err)
		}
		for i := range x {
			if want := tensor.F32FromBF16(tensor.BF16FromF32(x[i])); y[i] != want {
				t.Fatalf("%s: element %d is %v, want %v rounded to %v", name, i, y[i], x[i], want)
			}
		}
	}
	if c, err := hf.ReadConfig(half); err != nil || c.DType() != tensor.BF16 {
		t.Errorf("config of the bf16 model: %v (%v)", c.DType(), err)
	}
	if got := files(t, full)["generation_config.json"]; got != `{"eos_token_id": 256}` {
		t.Errorf("generation config %q", got)
	}
	if _, err := Export(context.Background(), env, ExportOptions{Model: dir, Dir: half, DType: tensor.BF16}); err == nil {
		t.Error("a model that is there is replaced")
	}
}

func open(t testing.TB, dir string) *hf.Weights {
	t.Helper()
	w, err := hf.OpenWeights(dir)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return w
}

// Of a document that no person would read to its end, the beginning is spelled.
func TestPreviewOfALongDocument(t *testing.T) {
	ids := make([]int32, PreviewTokens+1000)
	for i := range ids {
		ids[i] = 'a'
	}
	p := previewOf(tokenizer.Bytes(), data.Example{InputIDs: ids, Labels: ids})
	var text strings.Builder
	for _, piece := range p.Pieces {
		text.WriteString(piece.Text)
	}
	if len(p.InputIDs) != len(ids) || len(p.Tokens) != PreviewTokens || text.Len() != PreviewTokens {
		t.Errorf("%d ids, %d tokens, %d bytes of text", len(p.InputIDs), len(p.Tokens), text.Len())
	}
}
