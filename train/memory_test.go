package train

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
)

var documentsFlag = flag.Int("documents", 20_000, "documents of TestDocumentsArePlanned; from a million on the process's peak is compared, too")

// TestDocumentsArePlanned trains on many short documents: what grows with their number has a line in the plan, which
// is what was reserved, and the process takes no more than planned, at the ends of epochs neither.
func TestDocumentsArePlanned(t *testing.T) {
	documents := int64(*documentsFlag)
	if testing.Short() {
		documents = min(documents, 4_000)
	}
	batchTokens := 1 << 14
	if documents >= 1_000_000 {
		batchTokens = 1 << 18
	}
	dir := t.TempDir()
	text := filepath.Join(dir, "lines.jsonl")
	f, err := os.Create(text)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewWriter(f)
	for i := range documents {
		fmt.Fprintf(lines, "{\"text\": \"%d\"}\n", i%997)
	}
	if err := errors.Join(lines.Flush(), f.Close()); err != nil {
		t.Fatal(err)
	}
	small := writeConfig(t, map[string]any{"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1})
	cache := t.TempDir()
	for name, more := range map[string]string{"auto": "", "300 MiB": "memory: {host: 300MiB}\n", "held out": "val_size: 0.5\n"} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "run")
			c, err := configOf(t, fmt.Sprintf("model: %q\ninit: random\ntokenizer: bytes\nsequence_len: 64\n"+
				"batch_tokens: %d\nepochs: 3\nsave: {minutes: 0, at_end: false}\n"+
				"datasets:\n  - {path: %q, type: text}\noutput_dir: %q\n%s",
				small, batchTokens, text, out, more))
			if err != nil {
				t.Fatal(err)
			}
			env := newEnv(t)
			env.CacheDir = cache
			if documents < 1_000_000 {
				// Memory of earlier tests in the process, and of the race detector, is not the run's.
				env.Tests.ProgramBytes = 64 << 20
			}
			sum, err := Train(context.Background(), c, Options{Env: env})
			if err != nil {
				t.Fatal(err)
			}
			doc, err := os.ReadFile(filepath.Join(out, "plan.json"))
			if err != nil {
				t.Fatal(err)
			}
			var p plan.Plan
			if err := json.Unmarshal(doc, &p); err != nil {
				t.Fatal(err)
			}
			var planned int64
			for _, b := range p.Host {
				if b.Purpose == data.OrderPurpose {
					planned = b.Bytes
				}
			}
			// To hold documents out, and to pack those for evaluation, takes memory that is given back before the run is
			// planned.
			order := env.Accounts.Of(data.OrderPurpose)
			if c.ValSize == 0 && order.PeakBytes != planned || planned < 8*documents || planned > 24*documents {
				t.Errorf("the order of %d documents took %d bytes, and %d are in the plan", documents, order.PeakBytes, planned)
			}
			if documents >= 1_000_000 {
				t.Logf("%d steps: %d MiB measured, %d MiB planned, %d MiB of that for the order of the data", sum.Steps, sum.PeakBytes>>20, sum.PlannedBytes>>20, planned>>20)
				if sum.PeakBytes > sum.PlannedBytes {
					t.Error("the process took more than its plan")
				}
			}
		})
	}
}

// TestPartsAreFilledInPlace: weights go into the store a piece at a time, where they are in the end. A part on its
// way there was in no plan, so that eval took more than its memory budget while it loaded a model of large parts.
func TestPartsAreFilledInPlace(t *testing.T) {
	env := newEnv(t)
	src, err := source.OpenModel(t.Context(), env, writeConfig(t, map[string]any{"hidden_size": 256,
		"intermediate_size": 2048}))
	if err != nil {
		t.Fatal(err)
	}
	dev, err := env.OpenDevices("cpu")
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	n, err := runfile.NumericsOf("bf16", "")
	if err != nil {
		t.Fatal(err)
	}
	n.SequenceLen = 64
	p, err := env.FitForward(t.Context(), src.Model.Frozen(), n, 1, dev, runfile.Memory{}, plan.Outputs{})
	if err != nil {
		t.Fatal(err)
	}
	s, _, err := stream.OpenStore(p, stream.StoreOptions{Accounts: env.Accounts})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	var largest int64
	for _, spec := range p.Extents() {
		largest = max(largest, spec.Bytes)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err = stream.Fill(t.Context(), p, s, func(*model.Part, model.Values) error { return nil })
	runtime.ReadMemStats(&after)
	if got := int64(after.TotalAlloc - before.TotalAlloc); err != nil || largest < 2<<20 || got > largest/8 {
		t.Errorf("to fill parts of %d bytes took %d of the Go heap, %v", largest, got, err)
	}
}

// TestHeapIsLimited: while a session lasts, the Go heap is held to what the plan has for it, unless the user has set
// a limit.
func TestHeapIsLimited(t *testing.T) {
	limit := func() int64 { return debug.SetMemoryLimit(-1) }
	before := limit()
	open := func() *session.Session {
		env := newEnv(t)
		src, err := source.OpenModel(t.Context(), env, writeConfig(t, nil))
		if err != nil {
			t.Fatal(err)
		}
		dev, err := env.OpenDevices("cpu")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { dev.Close() })
		n, err := runfile.NumericsOf("bf16", "")
		if err != nil {
			t.Fatal(err)
		}
		n.SequenceLen = 64
		p, err := env.FitForward(t.Context(), src.Model, n, 1, dev, runfile.Memory{}, plan.Outputs{})
		if err != nil {
			t.Fatal(err)
		}
		fill := func(ctx context.Context, s *session.Session) error { return source.Fill(ctx, s, src, "random", 1) }
		s, err := env.OpenSession(t.Context(), p, dev, session.SessionOptions{Fill: fill})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	s := open()
	now := []metrics.Sample{{Name: "/memory/classes/total:bytes"}}
	metrics.Read(now)
	if got := limit(); s.Plan.ManifestBytes == 0 || got > int64(now[0].Value.Uint64())+16<<20+s.Plan.ManifestBytes {
		t.Errorf("the limit is %d bytes, with %d for manifests", got, s.Plan.ManifestBytes)
	}
	if err := s.Close(); err != nil || limit() != before {
		t.Errorf("the limit was %d before and is %d after, %v", before, limit(), err)
	}
	t.Setenv("GOMEMLIMIT", "1TiB")
	s = open()
	if limit() != before {
		t.Error("a limit that was set is changed")
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
