package train

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/plan"
)

// TestDocumentsArePlanned trains on many short documents: what grows with their number has a line in the plan, which is what was reserved.
func TestDocumentsArePlanned(t *testing.T) {
	const documents = 20_000
	dir := t.TempDir()
	var lines strings.Builder
	for i := range documents {
		fmt.Fprintf(&lines, "{\"text\": \"%d\"}\n", i%97)
	}
	text := filepath.Join(dir, "lines.jsonl")
	write(t, text, lines.String())
	for name, more := range map[string]string{"": "", "held out": "val_size: 0.5\n"} {
		out := filepath.Join(dir, "run"+name)
		c, err := parsed(t, fmt.Sprintf("model: %q\ninit: random\ntokenizer: bytes\nsequence_len: 64\nbatch_tokens: 65536\nepochs: 3\ndatasets:\n  - {path: %q, type: text}\noutput_dir: %q\n%s",
			writeConfig(t, nil), text, out, more))
		if err != nil {
			t.Fatal(err)
		}
		env := newEnv(t)
		env.CacheDir = t.TempDir()
		if _, err := Train(context.Background(), c, env, Options{}); err != nil {
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
		// To hold documents out, and to pack those for evaluation, takes memory that is given back before the run is planned.
		order := env.Accounts.Of(data.OrderPurpose)
		if name == "" && order.PeakBytes != planned || planned < 8*documents || planned > 24*documents {
			t.Errorf("%s: the order of %d documents took %d bytes, and %d are in the plan", name, documents, order.PeakBytes, planned)
		}
	}
}
