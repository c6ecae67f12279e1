package train

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/runfile"
)

// A run whose drive is hot says so once, and its bits are those of one whose drive is not.
func TestHotDrive(t *testing.T) {
	c := smallConfig(t)
	c.Model = writeModel(t, map[string]any{"num_hidden_layers": 9})
	c.Precision, c.Numerics, c.MaxSteps = runfile.Defaults().Precision, runfile.Sizes{MicroBatch: 2, HeadChunk: 32}, 3
	sys := t.TempDir()
	var st unix.Stat_t
	if err := unix.Stat(sys, &st); err != nil {
		t.Fatal(err)
	}
	controller := filepath.Join(sys, "devices", "nvme0")
	for name, text := range map[string]string{"nvme0n1/size": "1", "hwmon0/name": "nvme", "hwmon0/temp1_input": "83000",
		"hwmon0/temp1_max": "84850"} {
		path := filepath.Join(controller, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	block := filepath.Join(sys, "dev", "block")
	if err := os.MkdirAll(block, 0o755); err != nil {
		t.Fatal(err)
	}
	number := fmt.Sprintf("%d:%d", unix.Major(uint64(st.Dev)), unix.Minor(uint64(st.Dev)))
	if err := os.Symlink(filepath.Join(controller, "nvme0n1"), filepath.Join(block, number)); err != nil {
		t.Fatal(err)
	}
	c.Memory = tightMemory(t, c, nil)
	h := newHook(t, 200)
	c.Notify = []runfile.Notice{{On: []string{runfile.EventHotDrive}, URL: h.URL}}
	run := func(sys string) (*Summary, string) {
		own, env := *c, newEnv(t)
		own.OutputDir = t.TempDir()
		var said strings.Builder
		env.Tests.ProgramBytes, env.Tests.SysFS, env.Progress = 1, sys, &said
		s, err := Train(context.Background(), &own, Options{Env: env})
		if err != nil {
			t.Fatal(err)
		}
		return s, said.String()
	}
	cold, text := run(t.TempDir())
	if strings.Contains(text, "Celsius") || h.names() != "" {
		t.Errorf("without a thermometer it says: %s, and tells of %q", text, h.names())
	}
	hot, text := run(sys)
	const want = "warning: drive nvme0n1 is at 83 degrees Celsius and warns from 85 on: state on disk is read"
	if strings.Count(text, want) != 1 {
		t.Errorf("it does not say once %q: %s", want, text)
	}
	if h.names() != "hot_drive" || !strings.Contains(h.heard[0].Text, ": drive nvme0n1 is at 83 degrees") {
		t.Errorf("it tells of %+v", h.heard)
	}
	sameModel(t, hot.Model, cold.Model)
}
