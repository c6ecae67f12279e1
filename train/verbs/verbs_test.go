package verbs

import (
	"bytes"
	"context"
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
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/generate"
	"github.com/millrace/millrace/train/traintest"
)

// Loss, gradients and logits agree with PyTorch through the files, and a device budget changes no bit of them.
func TestGradientsOfGoldenModels(t *testing.T) {
	for _, variant := range modeltest.Variants(t) {
		t.Run(variant, func(t *testing.T) {
			t.Parallel()
			g := modeltest.Load(t, variant)
			tokens, sequences := traintest.TokensFile(t, g.First)
			dir := t.TempDir()
			o := GradOptions{Model: g.Dir, Tokens: tokens, Out: filepath.Join(dir, "bound"), Logits: true}
			sum, err := Gradients(context.Background(), traintest.NewEnv(t), o)
			if err != nil {
				t.Fatal(err)
			}
			got := traintest.ReadTensors(t, o.Out)
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
			for _, compute := range traintest.Computes(t, variant) {
				var bits [2][]byte
				for i, m := range []runfile.Memory{{}, traintest.Budget(t, "2MiB")} {
					o.Compute, o.Memory, o.Out = compute, m, filepath.Join(dir, compute)
					if _, err := Gradients(context.Background(), traintest.NewEnv(t), o); err != nil {
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
		"long": {`{"input_ids": [[` + strings.Repeat("1,", 5000) + `1]], "labels": [[` + strings.Repeat("1,", 5000) +
			`1]]}`, "shorten"},
		"fraction": {`{"input_ids": [[1.5, 2]], "labels": [[1, 2]]}`, "1.5"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			tokens := filepath.Join(dir, "tokens.json")
			if c.doc != "" {
				traintest.Write(t, tokens, c.doc)
			}
			out := filepath.Join(dir, "out", "grads")
			_, err := Gradients(context.Background(), traintest.NewEnv(t), GradOptions{Model: g.Dir, Tokens: tokens, Out: out})
			traintest.Refused(t, err, c.want)
			if traintest.Files(t, filepath.Dir(out)) != nil {
				t.Error("something was written")
			}
		})
	}
}

func TestEvaluate(t *testing.T) {
	dir := traintest.WriteModel(t, nil)
	o := EvalOptions{Model: dir, Data: []data.Source{{Path: traintest.Corpus(t), Type: data.Text}}, Tokenizer: "bytes",
		Compute: "f32", SequenceLen: 128}
	l, err := Evaluate(context.Background(), traintest.NewEnv(t), o)
	if err != nil {
		t.Fatal(err)
	}
	// A random model is as surprised by each of its 320 tokens, about.
	if l.TargetTokens < 1000 || math.Abs(l.Loss-math.Log(320)) > 1 || math.Abs(l.Perplexity-math.Exp(l.Loss)) > 1e-9 {
		t.Errorf("%+v", l)
	}
	o.Memory = traintest.Budget(t, "4MiB")
	streamed, err := Evaluate(context.Background(), traintest.NewEnv(t), o)
	if err != nil || !reflect.DeepEqual(streamed, l) {
		t.Errorf("streamed %+v (%v), bound %+v", streamed, err, l)
	}
	o.Compute = "bf16"
	half, err := Evaluate(context.Background(), traintest.NewEnv(t), o)
	if err != nil || math.Abs(half.Loss-l.Loss) > 0.01*l.Loss {
		t.Errorf("bf16 %+v (%v), f32 %+v", half, err, l)
	}
}

func TestPreview(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "qa.jsonl")
	traintest.Write(t, path, `{"prompt":"ab","response":"cde"}`+"\n"+`{"prompt":"`+strings.Repeat("x",
		20)+`","response":"y"}`+"\n")
	c := runfile.Defaults()
	c.Model, c.Tokenizer, c.SequenceLen = traintest.WriteConfig(t, nil), "bytes", 16
	c.Datasets = []data.Source{{Path: path, Type: data.PromptResponse}}
	var shown []PreviewExample
	sum, err := Preview(context.Background(), traintest.NewEnv(t), &c, PreviewOptions{Limit: 1},
		func(e PreviewExample) error { shown = append(shown, e); return nil })
	if err != nil {
		t.Fatal(err)
	}
	want := PreviewSummary{Documents: 2, Tokens: 7 + 23, TargetTokens: 4 + 2, LongestDoc: 23, Truncated: 1, CutTokens: 7,
		Packed: 2, Rows: 2, Efficiency: 23.0 / 32, EndedTurns: 2,
		Lengths: data.Lengths{P50: 7, P90: 23, P99: 23, Over: [3]data.LengthOver{{Tokens: 2048}, {Tokens: 4096},
			{Tokens: 8192}}},
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
	if _, err := Preview(context.Background(), traintest.NewEnv(t), &c, PreviewOptions{},
		func(PreviewExample) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("error %v", err)
	}
}

// A plan needs config.json only.
func TestPlanFor(t *testing.T) {
	c := runfile.Defaults()
	c.Model, c.SequenceLen, c.BatchTokens = traintest.WriteConfig(t, nil), 64, 256
	c.Datasets = []data.Source{{Path: "not read", Type: data.Text}}
	p, err := PlanFor(context.Background(), &c, PlanOptions{Env: traintest.NewEnv(t)})
	if err != nil {
		t.Fatal(err)
	}
	if p.Plan.HostBytes <= 0 || p.Plan.Predicted.StepSeconds <= 0 || p.Device.Name == "" || p.Machine.Check() != nil {
		t.Errorf("%+v", p)
	}
	c.Memory.Host = traintest.Budget(t, "1MiB").Device
	_, err = PlanFor(context.Background(), &c, PlanOptions{Env: traintest.NewEnv(t)})
	traintest.Refused(t, err, "memory.host")
	c.Memory = traintest.Budget(t, "1kB")
	_, err = PlanFor(context.Background(), &c, PlanOptions{Env: traintest.NewEnv(t)})
	traintest.Refused(t, err, "memory.device")
}

// A plan for this machine says when that has less memory than the run takes; a named machine is another one.
func TestPlanForLessMemoryThanItTakes(t *testing.T) {
	c := runfile.Defaults()
	c.Model, c.SequenceLen, c.BatchTokens = "none", 64, 256
	c.Datasets = []data.Source{{Path: "not read", Type: data.Text}}
	c.Memory.Host = traintest.Budget(t, "900TiB").Device
	p, err := PlanFor(context.Background(), &c, PlanOptions{Env: traintest.NewEnv(t), Shape: "smollm2-135m"})
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
	p, err = PlanFor(context.Background(), &c, PlanOptions{Env: traintest.NewEnv(t), Shape: "smollm2-135m",
		Machine: "rtx3090-pc-24gb-64gb"})
	if err != nil || p.Lacks() != "" {
		t.Errorf("a named machine: %v, %q", err, p.Lacks())
	}
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

func TestGenerate(t *testing.T) {
	dir := traintest.WriteModel(t, nil)
	o := generate.Options{Model: dir, Prompt: "the wheel", Tokenizer: "bytes", MaxTokens: 12, Compute: "f32"}
	run := func(change func(*generate.Options)) *generate.Generated {
		t.Helper()
		o := o
		change(&o)
		var out bytes.Buffer
		o.Out = &out
		g, err := generate.Text(context.Background(), traintest.NewEnv(t), o)
		if err != nil {
			t.Fatal(err)
		}
		if got := strings.ToValidUTF8(out.String(), "?"); strings.ReplaceAll(got, "?",
			"") != strings.ReplaceAll(strings.ReplaceAll(g.Text, "\uFFFD", ""), "?", "") {
			t.Errorf("printed %q, text is %q", got, g.Text)
		}
		return g
	}
	greedy := run(func(*generate.Options) {})
	if greedy.PromptTokens != 9 || len(greedy.Tokens) != 12 && greedy.Finish != generate.FinishStop {
		t.Errorf("%+v", greedy)
	}
	// Greedy tokens are the largest logits of `grad --logits`.
	ids := append([]int32(nil), traintest.ByteTokens(o.Prompt)...)
	ids = append(ids, greedy.Tokens...)
	doc, _ := json.Marshal(map[string]any{"input_ids": [][]int32{ids}, "labels": [][]int32{ids}})
	tokens, out := filepath.Join(t.TempDir(), "tokens.json"), filepath.Join(t.TempDir(), "grads")
	traintest.Write(t, tokens, string(doc))
	if _, err := Gradients(context.Background(), traintest.NewEnv(t), GradOptions{Model: dir, Tokens: tokens, Out: out,
		Logits: true}); err != nil {
		t.Fatal(err)
	}
	logits := traintest.ReadTensors(t, out)["logits.0"]
	for i, id := range greedy.Tokens {
		row := logits[(greedy.PromptTokens-1+i)*320:][:257]
		if best := slices.Index(row, slices.Max(row)); int32(best) != id {
			t.Errorf("token %d is %d, the largest logit is that of %d", i, id, best)
		}
	}
	hot := func(o *generate.Options) { o.Temperature, o.TopP, o.Seed = 1.5, 0.9, 7 }
	a, b := run(hot), run(hot)
	if !slices.Equal(a.Tokens, b.Tokens) {
		t.Errorf("the same seed gives %v and %v", a.Tokens, b.Tokens)
	}
	if c := run(func(o *generate.Options) { hot(o); o.Seed = 8 }); slices.Equal(a.Tokens, c.Tokens) {
		t.Errorf("two seeds give %v", a.Tokens)
	}
	if c := run(func(o *generate.Options) { hot(o); o.Memory = traintest.Budget(t, "2MiB") }); !slices.Equal(a.Tokens,
		c.Tokens) {
		t.Errorf("streamed: %v, bound: %v", c.Tokens, a.Tokens)
	}
	if c := run(func(o *generate.Options) { hot(o); o.TopK = 1 }); !slices.Equal(greedy.Tokens, c.Tokens) {
		t.Errorf("top 1: %v, greedy: %v", c.Tokens, greedy.Tokens)
	}
	// It ends where a generation config says, and where the model has no more positions.
	traintest.Write(t, filepath.Join(dir, "generation_config.json"),
		`{"eos_token_id": [300, `+string(traintest.MustJSON(greedy.Tokens[3]))+`]}`)
	at := slices.Index(greedy.Tokens, greedy.Tokens[3])
	if c := run(func(*generate.Options) {}); c.Finish != generate.FinishStop ||
		!slices.Equal(c.Tokens, greedy.Tokens[:at]) {
		t.Errorf("%+v, want the first %d tokens of %v", c, at, greedy.Tokens)
	}
	traintest.Write(t, filepath.Join(dir, "generation_config.json"), `{"eos_token_id": null}`)
	if c := run(func(o *generate.Options) { o.Prompt = strings.Repeat("x", 126) }); c.Finish == generate.FinishLength &&
		len(c.Tokens) != 3 {
		t.Errorf("%+v: 126 tokens of 128 positions have 3 that follow", c)
	}
	for want, change := range map[string]func(*generate.Options){
		"shorten":       func(o *generate.Options) { o.Prompt = strings.Repeat("x", 128) },
		"empty":         func(o *generate.Options) { o.Prompt = "" },
		"--max-tokens":  func(o *generate.Options) { o.MaxTokens = 0 },
		"--temperature": func(o *generate.Options) { o.Temperature = math.NaN() },
		"--top-p":       func(o *generate.Options) { o.TopP = 1.5 },
		"tokenizer":     func(o *generate.Options) { o.Tokenizer = "auto" },
		"compute":       func(o *generate.Options) { o.Compute = "fp8" },
	} {
		o := o
		change(&o)
		_, err := generate.Text(context.Background(), traintest.NewEnv(t), o)
		traintest.Refused(t, err, want)
	}
}
