package reference

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/train/hosts"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
	"github.com/millrace/millrace/train/traintest"
	"github.com/millrace/millrace/vfs"
)

// rig is a model with documents of several chunks.
type rig struct {
	env  *session.Env
	dev  *session.Devices
	data *data.Dataset
	o    Options
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{env: traintest.NewEnv(t)}
	r.env.CacheDir = t.TempDir()
	var err error
	if r.dev, err = r.env.OpenDevices("cpu"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.dev.Close() })
	dir := traintest.WriteModel(t, map[string]any{"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2})
	c, err := traintest.ConfigOf(t,
		fmt.Sprintf("model: %s\ntokenizer: bytes\nsequence_len: 24\nbatch_tokens: 48\ndatasets:\n  - {path: %s, type: text}",
			dir, corpus(t)))
	if err != nil {
		t.Fatal(err)
	}
	if r.o.Model, err = source.OpenModel(t.Context(), r.env, dir); err != nil {
		t.Fatal(err)
	}
	reader, err := r.o.Model.OpenReader(c)
	if err != nil {
		t.Fatal(err)
	}
	if r.data, err = source.Prepare(t.Context(), r.env, "the data", c.Datasets, reader); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.data.Close() })
	if r.o.Numerics, err = c.Types(); err != nil {
		t.Fatal(err)
	}
	r.o.Numerics.SequenceLen, r.o.Init = c.SequenceLen, "pretrained"
	if r.o.Weights, err = r.o.Model.Fingerprint(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// corpus has documents of three chunks, some longer than a row, and some of one token.
func corpus(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "text.jsonl")
	var b strings.Builder
	for i := range 2*chunkDocuments + 50 {
		fmt.Fprintf(&b, "{\"text\": %q}\n", strings.Repeat("abcdefg"[i%5:], 1+i%6))
	}
	traintest.Write(t, path, b.String())
	return path
}

func (r *rig) open(ctx context.Context) (*Set, error) {
	return Open(ctx, r.env, r.dev, r.o, r.data.Parts())
}

// bytes are all log-probabilities of a set, which it closes.
func (r *rig) bytes(t *testing.T, s *Set) (all string) {
	t.Helper()
	for d := range r.data.Len() {
		part, document := r.data.Origin(d)
		b := make([]byte, 4*r.o.width()*(min(r.data.Parts()[part].Length(document), r.o.Numerics.SequenceLen)-1))
		if err := s.Read(b, part, document); err != nil {
			t.Fatal(err)
		}
		all += string(b)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return all
}

// whole are all log-probabilities of an evaluation without a pause.
func (r *rig) whole(t *testing.T) string {
	t.Helper()
	s, err := r.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r.bytes(t, s)
}

// The file is the only one in its directory.
func (r *rig) file(t *testing.T) string {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(r.env.CacheDir, "reference", "*"))
	if err != nil || len(names) != 1 {
		t.Fatalf("the directory has %v (%v), and one file is to be there", names, err)
	}
	return names[0]
}

// wholeChunks counts the chunks of a file that are whole.
func (r *rig) wholeChunks(t *testing.T, name string) int {
	t.Helper()
	p := r.data.Parts()[0]
	f := &file{part: p, rowLen: r.o.Numerics.SequenceLen, width: r.o.width(), key: r.o.key(p, r.dev.Info().Numerics)}
	f.chunks = chunksOf(p, f.rowLen, f.width)
	var err error
	if f.f, err = os.Open(name); err != nil {
		t.Fatal(err)
	}
	defer f.f.Close()
	if f.check() != nil {
		return 0
	}
	return f.whole
}

// The log-probabilities are those of a pass over each document alone, to the bit.
func TestLogProbsAreThoseOfDocumentsAlone(t *testing.T) {
	r := newRig(t)
	s, err := r.open(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	n := r.o.Numerics
	p, err := r.env.FitForward(t.Context(), r.o.Model.Model.Frozen(), n, 1, r.dev, r.o.Memory,
		plan.Outputs{LogProbs: true})
	if err != nil {
		t.Fatal(err)
	}
	alone, err := source.OpenModelSession(t.Context(), r.env, p, r.dev, nil, r.o.Model)
	if err != nil {
		t.Fatal(err)
	}
	defer alone.Close()
	for d := 0; d < r.data.Len(); d += 83 {
		e, err := r.data.Example(d)
		if err != nil {
			t.Fatal(err)
		}
		length := min(len(e.InputIDs), n.SequenceLen)
		e.InputIDs, e.Labels = e.InputIDs[:length], e.InputIDs[:length]
		b, err := session.Unpacked([]data.Example{e}, p.Numerics)
		if err != nil {
			t.Fatal(err)
		}
		want, err := alone.Engine.LogProbs(t.Context(), b)
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 4*(length-1))
		if err := s.Read(got, 0, d); err != nil {
			t.Fatal(err)
		}
		for i, x := range hostmem.F32(got) {
			if x != want[0][i] || x == 0 {
				t.Fatalf("document %d, token %d: %v, and %v alone", d, i+1, x, want[0][i])
			}
		}
	}
}

// cancelAt ends a context when a bar shows the chunk of that number.
type cancelAt struct {
	left   int
	cancel context.CancelFunc
}

func (c *cancelAt) Write(b []byte) (int, error) {
	if strings.Contains(string(b), "evaluating the ") {
		if c.left--; c.left == 0 {
			c.cancel()
		}
	}
	return len(b), nil
}

// hurrying is a clock that moves by a minute whenever it is asked.
type hurrying struct {
	hosts.Clock
	minutes int
}

func (h *hurrying) Now() time.Time {
	h.minutes++
	return time.Unix(1e9, 0).Add(time.Duration(h.minutes) * time.Minute)
}

// An evaluation that is stopped continues after its whole chunks, and comes to the bytes of one without a pause. So
// does one whose file was torn.
func TestAnEvaluationContinues(t *testing.T) {
	t.Run("of a reference", func(t *testing.T) { evaluationContinues(t, newRig(t)) })
	t.Run("of a teacher", func(t *testing.T) {
		r := newRig(t)
		r.o.TopK = 3
		evaluationContinues(t, r)
	})
}

func evaluationContinues(t *testing.T, r *rig) {
	t.Helper()
	want := r.whole(t)
	name := r.file(t)
	file, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	chunks := chunksOf(r.data.Parts()[0], r.o.Numerics.SequenceLen, r.o.width())
	if len(chunks) < 3 {
		t.Fatalf("%d chunks, and the test needs 3", len(chunks))
	}
	torn := append([]byte(nil), file[:chunks[2].at+100]...)
	flipped := append([]byte(nil), file...)
	flipped[chunks[1].at+9] ^= 4
	for what, is := range map[string]struct {
		part, final []byte
		kept        int // chunks that are not computed again
	}{
		"torn in the third chunk": {part: torn, kept: 2}, "a bit of the second chunk": {part: flipped, kept: 1},
		"whole, without its name": {part: file, kept: 3}, "of another key": {part: append([]byte("mrlogpr0"), file[8:]...)},
		"empty": {part: []byte{}}, "a damaged file": {final: flipped}, "a short file": {final: torn},
	} {
		t.Run(what, func(t *testing.T) {
			if err := os.Remove(name); err != nil {
				t.Fatal(err)
			}
			if is.final != nil {
				traintest.Write(t, name, string(is.final))
			} else {
				traintest.Write(t, name+".part", string(is.part))
				if got := r.wholeChunks(t, name+".part"); got != is.kept {
					t.Errorf("%d chunks are whole, want %d", got, is.kept)
				}
			}
			if got := r.whole(t); got != want {
				t.Error("the log-probabilities are others")
			}
			if r.file(t) != name {
				t.Error("the file has another name")
			}
		})
	}
}

// A run that is stopped in the evaluation keeps its whole chunks.
func TestAnEvaluationIsStopped(t *testing.T) {
	for _, topK := range []int{0, 3} {
		r := newRig(t)
		r.o.TopK = topK
		evaluationIsStopped(t, r)
	}
}

func evaluationIsStopped(t *testing.T, r *rig) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r.env.Progress, r.env.Terminal = &cancelAt{2, cancel}, true
	r.env.Tests.Watch = &hurrying{Clock: hosts.MachineClock{}} // each chunk shows the bar
	if s, err := r.open(ctx); !errors.Is(err, context.Canceled) {
		t.Fatalf("the evaluation ended with %v, %v", s, err)
	}
	if got := r.wholeChunks(t, r.file(t)); got == 0 || got == 3 {
		t.Errorf("%d chunks are whole", got)
	}
	r.env.Progress, r.env.Tests.Watch = &cancelAt{}, nil
	stopped := r.whole(t)
	if err := os.Remove(r.file(t)); err != nil {
		t.Fatal(err)
	}
	if r.whole(t) != stopped {
		t.Error("the log-probabilities are others")
	}
}

// While another process makes the file, or where there is no cache, a run makes its own.
func TestAFileOfItsOwn(t *testing.T) {
	r := newRig(t)
	want := r.whole(t)
	name := r.file(t)
	if err := os.Remove(name); err != nil {
		t.Fatal(err)
	}
	lock, err := vfs.OS{}.Lock(name + ".part")
	if err != nil {
		t.Fatal(err)
	}
	if r.whole(t) != want {
		t.Error("the log-probabilities are others")
	}
	if err := errors.Join(lock.Close(), os.Remove(name+".part")); err != nil {
		t.Fatal(err)
	}
	if r.file(t) != name {
		t.Error("the file has another name")
	}
	r.env.CacheDir = ""
	if r.whole(t) != want {
		t.Error("without a cache the log-probabilities are others")
	}
}

// All that log-probabilities depend on is in their key, and a set has a name by that.
func TestKeys(t *testing.T) {
	r := newRig(t)
	seen := map[string]string{}
	for what, change := range map[string]func(o *Options){"as it is": func(*Options) {},
		"weights": func(o *Options) { o.Weights = "others" }, "length": func(o *Options) { o.Numerics.SequenceLen++ },
		"type": func(o *Options) { o.Numerics.Compute++ }, "random": func(o *Options) { o.Init = "random" },
		"seed": func(o *Options) { o.Init, o.Seed = "random", 7 }, "teacher": func(o *Options) { o.TopK = 3 },
		"another list": func(o *Options) { o.TopK = 4 }, "temperature": func(o *Options) { o.TopK, o.Temperature = 3, 2 },
		"another temperature": func(o *Options) { o.TopK, o.Temperature = 3, 1.5 }} {
		o := r.o
		change(&o)
		key := fmt.Sprint(o.key(r.data.Parts()[0], "this"))
		if other, ok := seen[key]; ok {
			t.Errorf("%s and %s have one key", what, other)
		}
		seen[key] = what
	}
	if o := r.o; o.key(r.data.Parts()[0], "this") == o.key(r.data.Parts()[0], "another device") {
		t.Error("the device is not in the key")
	}
	one, other := r.o, r.o
	one.TopK, other.TopK, other.Temperature = 3, 3, 1
	if one.key(r.data.Parts()[0], "this") != other.key(r.data.Parts()[0], "this") {
		t.Error("a temperature of 1 is another one than none")
	}
}
