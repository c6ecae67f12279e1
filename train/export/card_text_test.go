package export

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/gguf"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/hf/hub"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train/rundir"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
	"github.com/millrace/millrace/train/traintest"
	"github.com/millrace/millrace/vfs"
)

// TestCardText: ids of the hub come into the head, and the table of a long run is short.
func TestCardText(t *testing.T) {
	r := runfile.Defaults()
	r.Model, r.OutputDir = "org/base", "/home/ada/runs/x"
	r.Datasets = []data.Source{{Path: "openai/gsm8k", Type: data.PromptResponse, Name: "main", Split: "train"},
		{Path: "/home/ada/a|b.jsonl", Type: data.Text}, {Path: "data/train.jsonl", Type: data.Text}}
	r.Tokenizer, r.Stop.LossAbove = "./../../home/ada/tokenizer", 12
	var metrics []trace.Metrics
	for step := int64(1); step <= 1000; step++ {
		m := trace.Metrics{Step: step, Loss: 3 / float64(step), Tokens: 100, TargetTokens: 40}
		if step == 777 {
			loss := 0.25
			m.EvalLoss = &loss
		}
		metrics = append(metrics, m)
	}
	c := card{name: "x", model: "llama", params: 134515008, as: Format{DType: tensor.BF16}, Trained: Trained{Step: 1000},
		base: r.Model, config: &r,
		metrics: metrics}
	if text := string(c.text()); strings.Contains(text, "base_model") {
		t.Errorf("a path that looks like an id is the base model:\n%s", text)
	}
	c.baseID = "org/base"
	text := string(c.text())
	for _, want := range []string{
		"---\n" + hf.CardMark + "\nmillrace_step: " + strconv.Itoa(c.Step) +
			"\nbase_model: org/base\ndatasets: [openai/gsm8k]\nlibrary_name:",
		"| openai/gsm8k, main, train | prompt-response | training |",
		"| `a\\|b.jsonl` | text | training |", "| `data/train.jsonl` | text | training |", "loss_above: 12",
		"| 1 | 3.0000 |", "| 1000 | 0.0030 |", "| 777 | 0.0039 | 0.2500 |",
		"A llama model of 135M parameters in bf16, trained further from org/base for 1000 steps"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in the card:\n%s", want, text)
		}
	}
	if strings.Contains(text, "/home") {
		t.Errorf("a path of the machine is in the card:\n%s", text)
	}
	if rows := strings.Count(text, "\n| "); rows > 20 {
		t.Errorf("%d rows:\n%s", rows, text)
	}
	c.isRandom = true
	if text = string(c.text()); !strings.Contains(text, "trained from random weights") {
		t.Errorf("the card of random weights is\n%s", text)
	}
}

// Settings of a checkpoint, names and the run file cannot add headings, HTML or links to a card.
func TestCardOfHostileTexts(t *testing.T) {
	const evil = "1 |\n\n# Official release\n<img src=x>`` [a](http://b) \x1b[2J\n```\n## Gone"
	r := runfile.Defaults()
	r.Model, r.OutputDir = evil, "x"
	r.Datasets = []data.Source{{Path: "a`|<b>\n# c", Type: data.Text, Name: evil, Split: "<i>"}}
	for name, c := range map[string]card{
		"a checkpoint alone": {Trained: Trained{Settings: map[string]string{"seed": evil, evil: "1", "whole": "3"}}},
		"a run":              {config: &r},
	} {
		c.name, c.model, c.base, c.as = evil, evil, evil, Format{DType: tensor.BF16}
		text := string(c.text())
		fenced := ""
		for i, line := range strings.Split(text, "\n") {
			if f := strings.TrimSuffix(line, "yaml"); strings.HasPrefix(f, "```") && strings.Trim(f, "`") == "" {
				if fenced == "" {
					fenced = f
				} else if f == fenced {
					fenced = ""
				}
				continue
			}
			if fenced != "" || i < 7 {
				continue
			}
			isHeading := strings.HasPrefix(line, "#") && !slices.Contains([]string{"## Data", "## Losses", "## Settings",
				"## Command"}, line) && !strings.HasPrefix(line, "# 1 ")
			shown := withoutCode(line)
			if isHeading || strings.ContainsAny(shown, "<>") || strings.Contains(shown, "](http://b") {
				t.Errorf("%s: a line of the card is %q", name, line)
			}
			if strings.ContainsAny(line, "\x1b\r") {
				t.Errorf("%s: %q", name, line)
			}
			cells := strings.Count(strings.ReplaceAll(line, `\|`, ""), "|")
			if strings.HasPrefix(line, "|") && cells != 3 && cells != 4 {
				t.Errorf("%s: %d bars in %q", name, cells, line)
			}
		}
		if fenced != "" {
			t.Errorf("%s: a block of code does not end:\n%s", name, text)
		}
	}
}

// withoutCode is a line without spans of code and without escaped characters, as CommonMark reads them.
func withoutCode(line string) string {
	var b strings.Builder
	ticks := func(i int) int { return len(line[i:]) - len(strings.TrimLeft(line[i:], "`")) }
	for i := 0; i < len(line); {
		n := ticks(i)
		switch {
		case line[i] == '\\':
			i += 2
		case n > 0:
			end := i + n
			for end < len(line) && ticks(end) != n {
				end += max(ticks(end), 1)
			}
			if end < len(line) {
				i = end
			}
			i += n
		default:
			b.WriteByte(line[i])
			i++
		}
	}
	return b.String()
}

func TestCodeSpan(t *testing.T) {
	for text, want := range map[string]string{"": "", "a b": "`a b`", "a\nb": "`a b`", "`": "`` ` ``",
		"a``b": "``` a``b ```",
		"a|b":  "`a|b`", "\x00": "`\\x00`"} {
		if got := codeSpan(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

// ok ends a test at an error.
func ok(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// refused reports whether an error has a text.
func refused(err error, want string) bool { return err != nil && strings.Contains(err.Error(), want) }

// all are the tensors of a model directory, and the types that they have there.
func all(t *testing.T, dir string) (values map[string][]float32, types map[string]tensor.DType) {
	t.Helper()
	w, err := hf.OpenWeights(dir)
	ok(t, err)
	defer w.Close()
	values, types = map[string][]float32{}, map[string]tensor.DType{}
	for _, name := range w.Names() {
		info, _ := w.Info(name)
		values[name], types[name] = make([]float32, info.Shape.Elems()), info.DType
		ok(t, w.ReadF32(name, values[name], 0))
	}
	return values, types
}

// A model that is written again has the numbers that it had, rounded to the type that is asked for, with its card and
// the other files.
func TestReexport(t *testing.T) {
	dir := traintest.WriteModel(t, nil)
	traintest.Write(t, filepath.Join(dir, hf.CardName), "a card")
	traintest.Write(t, filepath.Join(dir, "chat_template.jinja"), traintest.TurnTemplate)
	want, _ := all(t, dir)
	for asked, dtype := range map[tensor.DType]tensor.DType{tensor.Invalid: tensor.BF16, tensor.BF16: tensor.BF16,
		tensor.F32: tensor.F32, tensor.F16: tensor.F16} {
		out := filepath.Join(t.TempDir(), "out")
		done, err := HuggingFace(t.Context(), traintest.NewEnv(t), Options{Model: dir, Dir: out, DType: asked,
			ShardBytes: 100 << 10})
		ok(t, err)
		got, types := all(t, out)
		params := int64(0)
		for name, values := range want {
			params += int64(len(values))
			if types[name] != dtype {
				t.Errorf("%v: %s is in %v", asked, name, types[name])
			}
			for i, x := range values {
				switch dtype {
				case tensor.BF16:
					x = tensor.F32FromBF16(tensor.BF16FromF32(x))
				case tensor.F16:
					x = tensor.F32FromF16(tensor.F16FromF32(x))
				}
				if got[name][i] != x {
					t.Fatalf("%v: element %d of %s is %v, want %v", asked, i, name, got[name][i], x)
				}
			}
		}
		if done.Dir != out || done.DType != dtype.String() || done.Params != params || done.Files < 2 ||
			len(got) != len(want) {
			t.Errorf("%v: %+v", asked, done)
		}
		c, err := hf.ReadConfig(out)
		ok(t, err)
		card, err := hf.ReadCard(out)
		if err != nil || string(card) != "a card" || c.DType() != dtype || !vfs.Exists(filepath.Join(out,
			"chat_template.jinja")) {
			t.Errorf("%v: the card is %q, the type %v", asked, card, c.DType())
		}
		if _, err := HuggingFace(t.Context(), traintest.NewEnv(t), Options{Model: dir, Dir: out}); err == nil {
			t.Error("a directory that is there is written")
		}
	}
	if _, err := HuggingFace(t.Context(), traintest.NewEnv(t), Options{Model: dir, Dir: filepath.Join(dir, "x"),
		MXFP4: true}); !refused(err, "have no tensors in MXFP4") {
		t.Errorf("a llama in MXFP4: %v", err)
	}
	full := traintest.NewEnv(t)
	full.FS = noRoom{}
	if _, err := HuggingFace(t.Context(), full, Options{Model: dir, Dir: filepath.Join(t.TempDir(), "x")}); !refused(err,
		"are needed") {
		t.Errorf("a full disk: %v", err)
	}
}

// noRoom are the system's files on a drive that is full.
type noRoom struct{ vfs.OS }

func (noRoom) FreeBytes(string) (int64, error) { return 0, nil }

// What float16 cannot hold is an error that names the tensor. A type of an export is one of three.
func TestTypesOfExports(t *testing.T) {
	half := make([]uint16, 2)
	ok(t, toF16("a", half, []float32{65504, -65504}))
	for _, x := range []float32{65520, float32(math.Inf(-1)), float32(math.NaN())} {
		if err := toF16("a", half, []float32{0, x}); !refused(err, "tensor a has the number") {
			t.Errorf("%v in float16: %v", x, err)
		}
	}
	for text, want := range map[string]tensor.DType{"bf16": tensor.BF16, "F32": tensor.F32, "f16": tensor.F16, "i16": 0,
		"x": 0,
		"":  0} {
		if got, err := ParseType(text); got != want || (err != nil) != (want == tensor.Invalid) {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	if got := []string{Format{DType: tensor.F16}.String(), Format{tensor.BF16, true}.String()}; !slices.Equal(got,
		[]string{"f16", "mxfp4"}) {
		t.Errorf("formats are %q", got)
	}
}

// written writes a source's weights as a trained model, and returns its directory.
func written(t *testing.T, env *session.Env, src *source.Source, as Format, of *Trained,
	v func(part int) model.Values) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out")
	ok(t, Write(t.Context(), env, src, out, as, of, hf.WriteOptions{}, func(_ context.Context, part int) (model.Values,
		error) {
		return v(part), nil
	}))
	return out
}

// Weights in two halves are written in bf16 as the upper halves, which forward passes used, and in other types as the
// exact numbers, rounded once.
func TestWriteHalves(t *testing.T) {
	for name, is24 := range map[string]bool{"16-bit rest": false, "24 bits": true} {
		t.Run(name, func(t *testing.T) { testWriteHalves(t, is24) })
	}
}

func testWriteHalves(t *testing.T, is24 bool) {
	src, err := source.OpenModel(t.Context(), traintest.NewEnv(t), traintest.WriteConfig(t, nil))
	ok(t, err)
	halves := func(part int) (v model.Values) {
		for i := range src.Model.Parts[part].Layout.WeightElems {
			x := float32(1+part) + float32(i)/100000
			if is24 {
				high, low := tensor.SplitF24(x, tensor.NearestF24)
				v.High, v.Low8 = append(v.High, high), append(v.Low8, low)
				continue
			}
			high, low := tensor.SplitF32(x)
			v.High, v.Low = append(v.High, high), append(v.Low, low)
		}
		return v
	}
	for _, dtype := range []tensor.DType{tensor.BF16, tensor.F32, tensor.F16} {
		values, _ := all(t, written(t, traintest.NewEnv(t), src, Format{DType: dtype}, nil, halves))
		for _, x := range src.Model.Tensors() {
			at := 0
			for _, p := range x.Pieces {
				f := src.Model.Parts[p.Part].Layout.Fields[p.Field]
				v := halves(p.Part)
				for i := f.First; i < f.First+f.Elems; i++ {
					var want float32
					if is24 {
						want = tensor.JoinF24(v.High[i], v.Low8[i])
					} else {
						want = tensor.JoinF32(v.High[i], v.Low[i])
					}
					switch dtype {
					case tensor.BF16:
						want = tensor.F32FromBF16(v.High[i])
					case tensor.F16:
						want = tensor.F32FromF16(tensor.F16FromF32(want))
					}
					if got := values[x.Name][at]; got != want {
						t.Fatalf("%v: element %d of %s is %v, want %v", dtype, at, x.Name, got, want)
					}
					at++
				}
			}
		}
	}
}

// A card says what a run's directory and its checkpoint say of the training.
func TestCardOfARun(t *testing.T) {
	env := traintest.NewEnv(t)
	src, err := source.OpenModel(t.Context(), env, traintest.WriteModel(t, nil))
	ok(t, err)
	dir := filepath.Join(t.TempDir(), "the run")
	ok(t, os.Mkdir(dir, 0o755))
	of := Trained{RunDir: dir, Step: 2, Settings: map[string]string{"seed": "5", "data": "x", "steps": "9"},
		Base: &checkpoint.Base{Init: "random", Model: "/home/ada/base"}}
	params, _ := src.Model.Params()
	text := func(of Trained) string { return string(cardOf(env, src, FormatOf(src), &of).text()) }
	for _, want := range []string{"# the run\n", "millrace_step: 2\n", "| `seed` | `5` |",
		"trained from random weights for 2 steps",
		"in f32", gguf.SizeLabel(params) + " parameters", "all parameters at full precision"} {
		if got := text(of); !strings.Contains(got, want) {
			t.Errorf("no %q in the card:\n%s", want, got)
		}
	}
	for _, not := range []string{"| `data`", "## Losses", "Do not use", "ended here", "Texts end", "## Data"} {
		if got := text(of); strings.Contains(got, not) {
			t.Errorf("%q in the card:\n%s", not, got)
		}
	}
	of.Settings["precision"] = "bf16 split24 f32"
	if got := text(of); strings.Contains(got, "full precision") ||
		!strings.Contains(got, "all parameters with master weights of 24 bits") {
		t.Errorf("the card says another precision:\n%s", got)
	}
	delete(of.Settings, "precision")
	of.Base.Init, of.Unhealthy = "pretrained", 1
	if got := text(of); !strings.Contains(got, "trained further from `base` for") || !strings.Contains(got,
		"the last step was unhealthy") {
		t.Errorf("the card is\n%s", got)
	}
	if of.Unhealthy = 3; !strings.Contains(text(of), "the last 3 steps were unhealthy") {
		t.Errorf("the card is\n%s", text(of))
	}
	of.Base.Model = "org/base"
	if src.ID = "org/base"; !strings.Contains(text(of), "base_model: org/base\n") {
		t.Errorf("the card is\n%s", text(of))
	}
	if of.Base.Model = "org/other"; strings.Contains(text(of), "base_model: ") {
		t.Errorf("the card is\n%s", text(of))
	}
	traintest.Write(t, filepath.Join(dir, rundir.MetricsName), `{"step":1,"loss":2.5,"tokens":10,"target_tokens":4}
{"step":2,"loss":1.5,"tokens":10,"target_tokens":4}
{"step":3,"loss":0.5,"tokens":10,"target_tokens":4}
`)
	if got := text(of); !strings.Contains(got, "| 2 | 1.5000 |") || strings.Contains(got, "| 3 |") ||
		!strings.Contains(got, "8 of 20 tokens") {
		t.Errorf("the card is\n%s", got)
	}
	if cardOf(env, src, FormatOf(src), nil) != nil {
		t.Error("a model that is not trained has a card")
	}
	ok(t, src.Configure(&runfile.Config{TrainOnly: []string{"*layers.0*"}}))
	c := cardOf(env, src, FormatOf(src), &of)
	_, trained := src.Model.Params()
	if got := string(c.text()); !strings.Contains(got,
		gguf.SizeLabel(trained)+" of its parameters, the others frozen, at full") {
		t.Errorf("the card is\n%s", got)
	}
	c.frozenIn = tensor.BF16
	if got := string(c.text()); !strings.Contains(got, "frozen and rounded to bf16") {
		t.Errorf("the card is\n%s", got)
	}
}

// A card names the tokenizer, the template and the ends of a run, and says where the run ended early.
func TestCardOfAHandover(t *testing.T) {
	r := runfile.Defaults()
	r.Stop.Patience, r.ValSize, r.ChatTemplateKwargs = 2, 0.05, data.Kwargs{"think": false}
	c := card{config: &r, hands: &source.Handover{Tokenizer: "/home/ada/tok", Templates: map[string]string{"default": "x"},
		Ends: []int32{2, 7}, Texts: map[int32]string{2: "</s>", 7: "<end>"}},
		Trained: Trained{Step: 6, Settings: map[string]string{"steps": "9"}, Plateau: &checkpoint.Plateau{Evaluations: 2}}}
	expect := func(is bool, parts ...string) {
		t.Helper()
		for _, part := range parts {
			if text := string(c.text()); strings.Contains(text, part) != is {
				t.Errorf("%q in the card: %v\n%s", part, !is, text)
			}
		}
	}
	expect(true, "The tokenizer is that of `tok`.", "The chat template is the one that the run used.", "think",
		"Texts end with `</s> (2)` and `<end> (7)`.", "Of the training data 0.05 of the documents were kept",
		"The run was of 9 steps at most, and ended here")
	c.hands.Tokenizer, c.hands.Templates, c.hands.Ends = "bytes", nil, nil
	expect(true, "Each byte is a token.")
	expect(false, "chat template is the one", "Texts end", "It sets")
	c.Step = 9
	expect(false, "ended here")
	c.Step, r.Stop.Patience = 6, 3
	expect(false, "ended here")
}

// The table of losses has the first step, the last one and the last evaluation, and some between; a sentence compares
// the evaluations before training and after it.
func TestLossesOfACard(t *testing.T) {
	var metrics []trace.Metrics
	for step := range int64(101) {
		m := trace.Metrics{Step: step, Loss: float64(step), Tokens: 2, TargetTokens: 1}
		if step == 0 || step == 95 {
			loss := 10 / float64(step+1)
			m.EvalLoss, m.Loss = &loss, math.NaN()
		}
		metrics = append(metrics, m)
	}
	rows := func(metrics []trace.Metrics) (steps []string, text string) {
		var b strings.Builder
		(&card{metrics: metrics}).writeLosses(func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) })
		for line := range strings.Lines(b.String()) {
			if step, _, is := strings.Cut(strings.TrimPrefix(line, "| "), " | "); is && step != "step" {
				steps = append(steps, step)
			}
		}
		return steps, b.String()
	}
	steps, text := rows(metrics)
	if want := []string{"0", "1", "11", "22", "33", "44", "55", "66", "77", "88", "95", "100"}; !slices.Equal(steps,
		want) {
		t.Errorf("the table has steps %v, want %v", steps, want)
	}
	for _, want := range []string{"101 of 202 tokens. On the evaluation data: " +
		"10.0000 before training, 0.1042 after step 95.",
		"| 0 |  | 10.0000 |", "| 95 |  | 0.1042 |", "| 11 | 11.0000 |  |"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for _, few := range [][]trace.Metrics{metrics[:1], metrics[1:2], metrics[1:]} {
		if steps, text := rows(few); strings.Contains(text, "before training") || len(few) == 1 && len(steps) != 1 {
			t.Errorf("of %d records the table has steps %v\n%s", len(few), steps, text)
		}
	}
	if steps, text := rows(nil); len(steps) > 0 || text != "" {
		t.Errorf("without records it is %q", text)
	}
}

// A path of a machine is cut short in a card, and others are as they are.
func TestPortable(t *testing.T) {
	for path, want := range map[string]string{"/home/ada/x": "x", "~/x": "x", "../x": "x", "a/../../x": "x",
		"a/x": "a/x", "x": "x",
		"org/base": "org/base"} {
		if got := portable(path); got != want {
			t.Errorf("%s is %s, want %s", path, got, want)
		}
	}
	for path, want := range map[string]string{"org/base": "base", "org/base@main": "base", "/a/b": "b", "/a/b/": "b"} {
		if got := modelName(path); got != want {
			t.Errorf("%s is called %s, want %s", path, got, want)
		}
	}
}

// tokenized is a model with a tokenizer of 562 tokens, and as many rows or more.
func tokenized(t *testing.T, rows int) string {
	t.Helper()
	dir := traintest.WriteModel(t, map[string]any{"vocab_size": rows})
	spec, err := os.ReadFile(filepath.Join("..", "..", "data", "tokenizer", "testdata", "smollm2.json"))
	ok(t, err)
	traintest.Write(t, filepath.Join(dir, "tokenizer.json"), string(spec))
	return dir
}

// New tokens have ids after those of the tokenizer, and rows that are the mean of its tokens' rows; all other rows are
// as they were, and padding is used first.
func TestAddTokensGrowsRows(t *testing.T) {
	const tokens = 562
	for _, rows := range []int{tokens, tokens + 1, tokens + 5} {
		dir, out := tokenized(t, rows), filepath.Join(t.TempDir(), "out")
		traintest.Write(t, filepath.Join(dir, hf.CardName), "a card")
		done, err := AddTokens(t.Context(), traintest.NewEnv(t), AddTokensOptions{Model: dir, Dir: out,
			Tokens: []string{"<a>",
				"<|eos|>", "<b>"}})
		ok(t, err)
		wantRows := max(rows, tokens+2)
		if len(done.Added) != 2 || done.Added[1].ID != tokens+1 || !done.Added[0].Special || len(done.Known) != 1 ||
			done.First != tokens || done.Rowless != 0 || done.OldRows != rows || done.Rows != wantRows {
			t.Errorf("%d rows: %+v", rows, done)
		}
		before, _ := all(t, dir)
		after, _ := all(t, out)
		for name, old := range before {
			now := after[name]
			if !strings.Contains(name, "embed_tokens") && !strings.Contains(name, "lm_head") {
				if !slices.Equal(old, now) {
					t.Errorf("%d rows: %s is another one", rows, name)
				}
				continue
			}
			const cols = 48
			mean := make([]float64, cols)
			for i, x := range old[:tokens*cols] {
				mean[i%cols] += float64(x) / tokens
			}
			if len(now) != wantRows*cols || !slices.Equal(now[:tokens*cols], old[:tokens*cols]) ||
				rows > tokens+2 && !slices.Equal(now[(tokens+2)*cols:], old[(tokens+2)*cols:]) {
				t.Errorf("%d rows: %s has %d numbers, or others than before", rows, name, len(now))
			}
			for i, x := range now[tokens*cols:][:2*cols] {
				if math.Abs(float64(x)-mean[i%cols]) > 1e-6 {
					t.Errorf("%d rows: column %d of a new row of %s is %v, want %v", rows, i%cols, name, x, mean[i%cols])
				}
			}
		}
		src, err := source.OpenModel(t.Context(), traintest.NewEnv(t), out)
		ok(t, err)
		tok, err := src.OpenTokenizer("auto")
		ok(t, err)
		card, err := hf.ReadCard(out)
		if err != nil || string(card) != "a card" || src.Model.Vocab != wantRows || tok.TokenID("<b>") != tokens+1 {
			t.Errorf("%d rows: it has %d tokens and a card %q", rows, src.Model.Vocab, card)
		}
	}
	dir := tokenized(t, tokens)
	for _, c := range []struct {
		tokens []string
		want   string
	}{{[]string{" "}, "cannot be a token"}, {[]string{"\xff"}, "cannot be a token"}, {[]string{"<a>", "<a>"},
		"is named twice"},
		{[]string{"<|eos|>"}, "there is nothing to add"}} {
		_, err := AddTokens(t.Context(), traintest.NewEnv(t), AddTokensOptions{Model: dir, Dir: filepath.Join(t.TempDir(),
			"x"),
			Tokens: c.tokens})
		if !refused(err, c.want) {
			t.Errorf("%q: %v", c.tokens, err)
		}
	}
	full := traintest.NewEnv(t)
	full.FS = noRoom{}
	if _, err := AddTokens(t.Context(), full, AddTokensOptions{Model: dir, Dir: filepath.Join(t.TempDir(), "x"),
		Tokens: []string{"<a>"}}); !refused(err, "are needed") {
		t.Errorf("a full disk: %v", err)
	}
	for dtype, want := range map[tensor.DType][]byte{tensor.F32: {0, 0, 0x80, 0x3f}, tensor.F16: {0, 0x3c},
		tensor.BF16: {0x80, 0x3f}} {
		if got := encodeRow([]float32{1}, dtype); !slices.Equal(got, want) {
			t.Errorf("1 in %v is % x", dtype, got)
		}
	}
}

// A push names the files of a model, and leaves out others; a run's directory stands for its model.
func TestPushIsPlanned(t *testing.T) {
	dir := traintest.WriteModel(t, nil)
	traintest.Write(t, filepath.Join(dir, "notes.txt"), "x")
	push := func(change func(*PushOptions)) (*PushReport, error) {
		o := PushOptions{Path: dir, Repo: "ada/mill", DryRun: true}
		change(&o)
		return Push(t.Context(), traintest.NewEnv(t), o)
	}
	names := func(r *PushReport) (all []string) {
		for _, f := range r.Named {
			all = append(all, f.Name)
		}
		return all
	}
	r, err := push(func(*PushOptions) {})
	ok(t, err)
	if !slices.Equal(names(r), []string{"config.json", "model.safetensors"}) || !slices.Equal(r.LeftOut,
		[]string{"notes.txt"}) ||
		!r.DryRun || r.Repo != "ada/mill" || r.Revision != "main" || r.Visibility != hub.Visibility("") ||
		r.Named[0].Bytes == 0 {
		t.Errorf("%+v", r)
	}
	if r, err = push(func(o *PushOptions) { o.All = true }); err != nil || len(r.Named) != 3 || len(r.LeftOut) != 0 {
		t.Errorf("all: %+v, %v", r, err)
	}
	if r, err = push(func(o *PushOptions) { o.Revision = "b" }); err != nil || r.Revision != "b" {
		t.Errorf("a branch: %+v, %v", r, err)
	}
	if r, err = push(func(o *PushOptions) { o.Repo = "ada/mill@c" }); err != nil || r.Revision != "c" {
		t.Errorf("a branch: %+v, %v", r, err)
	}
	empty := t.TempDir()
	run := t.TempDir()
	traintest.Write(t, filepath.Join(run, rundir.MetricsName), "")
	traintest.Write(t, filepath.Join(run, "config.json"), "{}")
	for want, change := range map[string]func(*PushOptions){
		"is not a repository of the hub": func(o *PushOptions) { o.Repo = "mill" },
		"name the branch once":           func(o *PushOptions) { o.Repo, o.Revision = "ada/mill@c", "b" },
		"is not the name of a branch":    func(o *PushOptions) { o.Revision = "a b" },
		"no such file":                   func(o *PushOptions) { o.Path = filepath.Join(dir, "gone") },
		"has neither a config.json nor":  func(o *PushOptions) { o.Path = empty },
		"it is of a training run":        func(o *PushOptions) { o.Path = run },
	} {
		if _, err := push(change); !refused(err, want) {
			t.Errorf("%q: %v", want, err)
		}
	}
	ok(t, os.Rename(dir, filepath.Join(run, rundir.LastModel)))
	for _, path := range []string{run, filepath.Join(run, rundir.LastModel)} {
		if r, err := push(func(o *PushOptions) { o.Path = path }); err != nil || len(r.Named) != 2 {
			t.Errorf("%s: %+v, %v", path, r, err)
		}
	}
	ok(t, os.Rename(filepath.Join(run, rundir.LastModel, "model.safetensors"), filepath.Join(empty, "a.gguf")))
	for _, path := range []string{empty, filepath.Join(empty, "a.gguf")} {
		if r, err := push(func(o *PushOptions) { o.Path = path }); err != nil || !slices.Equal(names(r), []string{"a.gguf"}) {
			t.Errorf("%s: %+v, %v", path, r, err)
		}
	}
}

// A model is one GGUF file, in bf16 unless another type is asked for.
func TestGGUFOfAModel(t *testing.T) {
	dir := tokenized(t, 562)
	sizes := map[gguf.Type]int64{}
	for _, of := range []gguf.Type{"", gguf.BF16, gguf.F32} {
		file := filepath.Join(t.TempDir(), "a.gguf")
		report, err := GGUF(t.Context(), traintest.NewEnv(t), GGUFOptions{Model: dir, File: file, Type: of, Pre: "smollm"})
		ok(t, err)
		info, err := os.Stat(file)
		ok(t, err)
		if sizes[of] = info.Size(); report == nil {
			t.Errorf("%q: no report", of)
		}
	}
	params := int64(0)
	values, _ := all(t, dir)
	for _, v := range values {
		params += int64(len(v))
	}
	if sizes[""] != sizes[gguf.BF16] || sizes[gguf.F32]-sizes[""] < 3*params/2 || sizes[gguf.F32] < 4*params {
		t.Errorf("files of %d numbers have %v bytes", params, sizes)
	}
	full := traintest.NewEnv(t)
	full.FS = noRoom{}
	_, err := GGUF(t.Context(), full, GGUFOptions{Model: dir, File: filepath.Join(t.TempDir(), "a.gguf"), Pre: "smollm"})
	if !refused(err, "are needed") {
		t.Errorf("a full disk: %v", err)
	}
	if _, err := GGUF(t.Context(), traintest.NewEnv(t), GGUFOptions{Model: dir, Checkpoint: filepath.Join(dir,
		"x")}); err == nil ||
		errors.Is(err, os.ErrExist) {
		t.Errorf("a checkpoint that is not there: %v", err)
	}
}
