package train

import (
	"context"
	"path/filepath"
	"runtime/debug"
	"runtime/metrics"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/train/source"
)

// collectorSettings returns how much the Go heap may grow between collections, in percent, and the limit of Go's
// memory.
func collectorSettings() (percent uint64, limit uint64) {
	all := []metrics.Sample{{Name: "/gc/gogc:percent"}, {Name: "/gc/gomemlimit:bytes"}}
	metrics.Read(all)
	return all[0].Value.Uint64(), all[1].Value.Uint64()
}

// watching renders plainly and remembers the collector's settings.
type watching struct {
	data.Renderer
	percent, limit *uint64
}

func (w watching) Render(ctx context.Context, r data.Record) (data.Rendered, error) {
	*w.percent, *w.limit = collectorSettings()
	return w.Renderer.Render(ctx, r)
}

// While text becomes tokens, collections are rare, unless $GOGC says how rare or the run's memory has no room for garbage; then all is
// as before.
func TestCollectionsWhileTokenizing(t *testing.T) {
	defer debug.SetGCPercent(debug.SetGCPercent(25))
	_, noLimit := collectorSettings()
	path := filepath.Join(t.TempDir(), "a.jsonl")
	write(t, path, `{"text": "a"}`)
	for name, c := range map[string]struct {
		gogc      string
		hostBytes int64
		percent   uint64
		limit     uint64
	}{
		"no budget": {"", 0, 100, noLimit},
		"a budget":  {"", 3 << 30, 100, 3 << 30},
		"$GOGC":     {"25", 3 << 30, 25, noLimit},
	} {
		t.Run(name, func(t *testing.T) {
			t.Setenv("GOGC", c.gogc)
			var percent, limit uint64
			r := source.Reader{Tokenizer: tokenizer.Bytes(), Renderer: watching{data.Plain, &percent, &limit},
				HostBytes: c.hostBytes}
			d, err := source.Prepare(t.Context(), newEnv(t), "it", []data.Source{{Path: path, Type: data.Text}}, r)
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			if percent != c.percent || limit != c.limit {
				t.Errorf("the heap may grow by %d %% below %d bytes, want %d and %d", percent, limit, c.percent, c.limit)
			}
			if percent, limit := collectorSettings(); percent != 25 || limit != noLimit {
				t.Errorf("after it, the heap may grow by %d %% below %d bytes", percent, limit)
			}
		})
	}
}
