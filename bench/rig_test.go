package bench

import (
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/probe"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train"
)

// newEnv is an environment on the CPU device that keeps nothing. It is checked in the end that all memory came back.
func newEnv(t testing.TB) *train.Env {
	t.Helper()
	accounts := hostmem.New()
	t.Cleanup(func() {
		if n, _ := accounts.Total(); n != 0 {
			t.Errorf("%d bytes of host memory are still reserved: %v", n, accounts.Usage())
		}
	})
	return &train.Env{Accounts: accounts, Progress: io.Discard, Open: func(_ string, a *hostmem.Accounts) (
		[]device.Device, device.Device, error,
	) {
		d, err := cpu.New(cpu.Options{Workers: 2, Accounts: a})
		return []device.Device{d}, d, err
	}}
}

// writeConfig writes the config.json of a small llama, with changed keys.
func writeConfig(t testing.TB, change map[string]any) string {
	t.Helper()
	c := map[string]any{"model_type": "llama", "vocab_size": 320, "hidden_size": 48, "intermediate_size": 96,
		"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
		"rope_theta": 10000.0, "tie_word_embeddings": false, "hidden_act": "silu", "initializer_range": 0.08, "torch_dtype": "float32"}
	maps.Copy(c, change)
	doc, err := json.Marshal(c)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "config.json"), doc, 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// budget is a device budget.
func budget(t testing.TB, size string) runfile.Memory {
	t.Helper()
	b, err := runfile.ParseBytes(size)
	if err != nil {
		t.Fatal(err)
	}
	return runfile.Memory{Device: b}
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

// How fast a host is with updates: so slow that plans leave them to the device, or so fast that none does.
const (
	slowHost = 1e6  // bytes per second
	fastHost = 1e12 // bytes per second
)

// machineOf is a cache directory with a machine that has this rate of AdamW.
func machineOf(t *testing.T, adamWBytesPerSec float64) string {
	t.Helper()
	dev, err := newEnv(t).OpenDevices("cpu")
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	m := probe.Guess(dev.Info())
	m.Name, m.AdamWBytesPerSec = dev.Info().Name, adamWBytesPerSec
	dir := t.TempDir()
	if err := plan.WriteMachine(filepath.Join(dir, probe.MachineFile), m); err != nil {
		t.Fatal(err)
	}
	return dir
}
