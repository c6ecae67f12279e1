package generate

import (
	"errors"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
	"github.com/millrace/millrace/train/traintest"
)

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
			p := newPicker(Options{Temperature: c.temperature, TopK: c.topK, TopP: c.topP, Seed: 5}, 3)
			const n = 20000
			counts := make([]float64, 3)
			for at := range n {
				got := p.token(logits, 0, at)
				counts[got.ID]++
				// At temperature 0 the log-probability is that of temperature 1.
				want := c.want[got.ID]
				if c.temperature == 0 {
					want = 0.5
				}
				if d := float64(got.LogProb) - math.Log(want); math.Abs(d) > 1e-6 {
					t.Fatalf("token %d has the log-probability %v, and the probability %v", got.ID, got.LogProb, want)
				}
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
		if got := newPicker(Options{Temperature: 1, TopP: 0.9}, 2).token(logits, 0, 0); got.ID != noToken {
			t.Errorf("of %v token %d is chosen", logits, got.ID)
		}
	}
}

// The likeliest ids come first, and of equal logits the lower id, which is also what is chosen at temperature 0.
// Padding of the model's table is never chosen.
func TestLikeliestFirst(t *testing.T) {
	var order byLikelihood
	order.begin([]float32{1, 3, 2, 3, -1, 2})
	var ids []int32
	for range 6 {
		ids = append(ids, order.next())
	}
	if want := []int32{1, 3, 2, 5, 0, 4}; !slices.Equal(ids, want) {
		t.Errorf("ids come as %v, want %v", ids, want)
	}
	for _, c := range []struct {
		logits []float32
		vocab  int
		want   int32
	}{{[]float32{1, 3, 3, 9}, 3, 1}, {[]float32{1, 3, 3, 9}, 9, 3}, {[]float32{2, 1}, 2, 0},
		{[]float32{float32(math.Inf(-1)), 0}, 2, 1}} {
		for _, o := range []Options{{}, {Temperature: 1, TopK: 1}, {Temperature: 1, TopP: 1e-9}} {
			if got := newPicker(o, c.vocab).token(c.logits, 0, 0); got.ID != c.want {
				t.Errorf("of %v and %+v token %d is chosen", c.logits, o, got.ID)
			}
		}
	}
	up := float32(math.Inf(1))
	for _, logits := range [][]float32{{0, up}, {up, 0}} {
		if got := newPicker(Options{}, 2).token(logits, 0, 0); got.ID != noToken {
			t.Errorf("of %v token %d is chosen", logits, got.ID)
		}
	}
}

// Choices depend on the seed, the text and the place.
func TestChoicesDiffer(t *testing.T) {
	logits := make([]float32, 1000)
	pick := func(seed uint64, text, at int) int32 {
		return newPicker(Options{Temperature: 1, Seed: seed}, 1000).token(logits, text, at).ID
	}
	first := pick(1, 0, 0)
	if pick(1, 0, 0) != first || pick(2, 0, 0) == first || pick(1, 1, 0) == first || pick(1, 0, 1) == first {
		t.Errorf("choices are %d, %d, %d, %d", first, pick(2, 0, 0), pick(1, 1, 0), pick(1, 0, 1))
	}
}

// Characters are printed whole, as soon as all their bytes are there, and what is left of one at the end.
func TestWriterPrintsCharacters(t *testing.T) {
	for text, want := range map[string]string{"aé€😀b": "a||é|||€||||😀|b", "\xff\xf0a": "\xff||\xf0a",
		"a\xf0\x9f\x98": "a|||\xf0\x9f\x98",
		"é\x80":         "|é|\x80"} {
		var out strings.Builder
		w := writer{out: &out, tok: tokenizer.Bytes()}
		for i, b := range []byte(text) {
			if i > 0 {
				out.WriteByte('|')
			}
			if err := w.add(int32(b)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.end(); err != nil {
			t.Fatal(err)
		}
		if got := strings.ReplaceAll(out.String(), "|", ""); got != text {
			t.Errorf("%q is printed as %q", text, got)
		}
		if got := strings.Trim(out.String(), "|"); want != "" && got != strings.Trim(want, "|") {
			t.Errorf("%q is printed as %q, want %q", text, got, want)
		}
	}
	silent := writer{tok: tokenizer.Bytes()}
	if silent.add('a') != nil || silent.end() != nil || len(silent.left) > 0 {
		t.Error("a writer without an output keeps text")
	}
	broken := writer{out: brokenPipe{}, tok: tokenizer.Bytes()}
	if broken.add('a') == nil || broken.end() == nil {
		t.Error("an output that fails is no error")
	}
}

// brokenPipe is an output that fails.
type brokenPipe struct{}

func (brokenPipe) Write([]byte) (int, error) { return 0, errors.New("broken pipe") }

// A text ends at one of its ends, at the most tokens, or where its positions do; the token that ends it is not in it.
func TestTextsEnd(t *testing.T) {
	for _, c := range []struct {
		most, positions int
		text, want      string
		finish          string
	}{
		{9, 99, "abc.d", "abc", FinishStop},
		{3, 99, "abcd", "abc", FinishLength},
		{9, 4, "abcd", "abc", FinishLength},
		{1, 2, "ab", "a", FinishLength},
	} {
		w := newWriting(newPicker(Options{MaxTokens: c.most}, 256), 0, byteIDs("xy"), map[int32]bool{'.': true},
			tokenizer.Bytes(), c.positions)
		for i, b := range []byte(c.text) {
			ended, err := w.add(int32(b))
			if err != nil {
				t.Fatal(err)
			}
			if ended {
				break
			}
			if i == len(c.text)-1 {
				t.Errorf("%+v: it does not end", c)
			}
		}
		got, err := w.end(nil)
		if err != nil || got.Text != c.want || got.Finish != c.finish || got.PromptTokens != 2 ||
			len(got.Tokens) != len(c.want) ||
			got.TokensPerSec != 0 {
			t.Errorf("%+v: %+v, %v", c, got, err)
		}
		if _, err := w.end(ErrNotFinite); !errors.Is(err, ErrNotFinite) {
			t.Errorf("the error of its end: %v", err)
		}
	}
	// The last token's positions are never computed.
	for _, c := range [][4]int{{2, 3, 99, 4}, {2, 98, 99, 99}, {2, 1, 99, 2}, {5, 1 << 40, 8, 8}, {3, 5, 7, 7}, {3, 4, 7,
		6}} {
		if got := positionsOf(make([]int32, c[0]), c[1], c[2]); got != c[3] {
			t.Errorf("a prompt of %d that grows by %d, of a model for %d, has %d positions", c[0], c[1], c[2], got)
		}
	}
	if checkLength(make([]int32, 7), 8) != nil || checkLength(make([]int32, 8), 8) == nil {
		t.Error("a prompt may be as long as the model's positions, or not one less")
	}
}

// Options outside of their ranges are refused by the flag's name.
func TestOptionsAreChecked(t *testing.T) {
	good := Options{MaxTokens: 1, Temperature: 100, TopP: 1}
	if err := good.check(); err != nil {
		t.Error(err)
	}
	for flag, change := range map[string][]func(*Options){
		"--max-tokens": {func(o *Options) { o.MaxTokens = 0 }},
		"--temperature": {func(o *Options) { o.Temperature = -0.1 }, func(o *Options) { o.Temperature = 101 },
			func(o *Options) { o.Temperature = math.NaN() }},
		"--top-k": {func(o *Options) { o.TopK = -1 }},
		"--top-p": {func(o *Options) { o.TopP = -0.1 }, func(o *Options) { o.TopP = 1.1 },
			func(o *Options) { o.TopP = math.NaN() }},
	} {
		for _, f := range change {
			o := good
			f(&o)
			if err := o.check(); err == nil || !strings.HasPrefix(err.Error(), flag+" is ") {
				t.Errorf("%+v: %v", o, err)
			}
		}
	}
}

// sampling reads the prompts of a run file for a model with a chat template.
func sampling(t *testing.T, chat bool, samples runfile.Samples) (*Sampling, error) {
	t.Helper()
	o := talkOptions(t)
	src, err := source.OpenModel(t.Context(), traintest.NewEnv(t), o.Model)
	if err != nil {
		t.Fatal(err)
	}
	c := &runfile.Config{Tokenizer: "bytes", ChatTemplate: "model", Samples: samples,
		Datasets: []data.Source{{Type: "text"}}}
	if chat {
		c.Datasets = append(c.Datasets, data.Source{Type: "messages"})
	}
	return OpenSampling(t.Context(), src, c)
}

// A prompt of a run is a text as it stands, or what a user says where the run has conversations; messages are rendered.
// A plan is asked for the positions of the longest of them.
func TestSamplingPrompts(t *testing.T) {
	long := strings.Repeat("x", 20)
	samples := runfile.Samples{Prompts: []data.Prompt{{Text: "a"}, {Text: long},
		{Messages: []data.Message{{Role: data.User, Content: "hi"}}}}, Every: 1, MaxTokens: 5}
	for chat, want := range map[bool][]string{false: {"a", long, "<user>hi</s>\n<assistant>"},
		true: {"<user>a</s>\n<assistant>", "<user>" + long + "</s>\n<assistant>", "<user>hi</s>\n<assistant>"}} {
		s, err := sampling(t, chat, samples)
		if err != nil {
			t.Fatal(err)
		}
		longest := 0
		for i, w := range s.Writings() {
			if got := tokenizer.Bytes().Decode(w.ids, false); got != want[i] || w.number != i || w.MaxTokens != 5 {
				t.Errorf("conversations %v: prompt %d is %q", chat, i, got)
			}
			if !w.ends[256] {
				t.Errorf("prompt %d does not end at the end of text: %v", i, w.ends)
			}
			longest = max(longest, len(w.ids))
		}
		m := s.Memory()
		if m.Caches.Sequences != 3 || m.Caches.Positions != longest+4 {
			t.Errorf("a plan is asked for %+v", m)
		}
		text, err := s.Tokens()
		if err != nil || !strings.HasPrefix(string(text), "[[[") || !strings.Contains(string(text), "[256]") {
			t.Errorf("tokens are %s, %v", text, err)
		}
	}
	none, err := sampling(t, false, runfile.Samples{})
	if text, errTokens := none.Tokens(); none != nil || err != nil || text != nil || errTokens != nil ||
		none.Memory() != (session.SampleMemory{}) {
		t.Errorf("without samples: %+v, %v", none, err)
	}
	for want, prompt := range map[string]data.Prompt{"it is empty": {},
		"the model was made for 128 positions": {Text: strings.Repeat("x", 128)}} {
		samples.Prompts = []data.Prompt{{Text: "a"}, prompt}
		if _, err := sampling(t, true, samples); err == nil || !strings.Contains(err.Error(), want) ||
			!strings.HasPrefix(err.Error(), "samples.prompts[1]: ") {
			t.Errorf("%q: %v", want, err)
		}
	}
}

// The needs of samples for a named shape count a token for each byte.
func TestSamplesToPlan(t *testing.T) {
	c := &runfile.Config{Samples: runfile.Samples{Every: 1, MaxTokens: 5, Prompts: []data.Prompt{{Text: "abc"},
		{Messages: []data.Message{{Role: data.System, Content: "S"}, {Role: data.User, Content: "hello"}}}}}}
	m, err := SamplesToPlan(t.Context(), traintest.NewEnv(t), c, "shape")
	if err != nil || m.Caches.Sequences != 2 || m.Caches.Positions != 11 || m.Bytes != 0 {
		t.Errorf("%+v, %v", m, err)
	}
	c.Samples.Prompts = slices.Repeat(c.Samples.Prompts, 30)
	if m, err = SamplesToPlan(t.Context(), traintest.NewEnv(t), c, "shape"); err != nil ||
		m.Caches.Sequences != mostSamples {
		t.Errorf("%+v, %v", m, err)
	}
	c.Samples.PromptsFile = "no such file"
	if _, err := SamplesToPlan(t.Context(), traintest.NewEnv(t), c, "shape"); err == nil ||
		!strings.HasPrefix(err.Error(), "samples.prompts_file: ") {
		t.Errorf("a file that is not there: %v", err)
	}
	if m, err := SamplesToPlan(t.Context(), traintest.NewEnv(t), &runfile.Config{}, "shape"); err != nil ||
		m != (session.SampleMemory{}) {
		t.Errorf("without samples: %+v, %v", m, err)
	}
}
