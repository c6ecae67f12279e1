package verbs

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/probe"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/traintest"
)

// A plan for a CPU whose probe measured one compute type to be faster says so for a run in the other type, and nothing
// where it does not know.
func TestPlanSaysWhichTypeIsFaster(t *testing.T) {
	dev, err := traintest.NewEnv(t).OpenDevices("cpu")
	if err != nil {
		t.Fatal(err)
	}
	info := dev.Info()
	dev.Close()
	for name, c := range map[string]struct {
		compute, moments string
		faster           string // times as fast, in all
		change           func(*plan.Machine)
		want             string
	}{
		"f32 is":             {"bf16", "f32", "f32", nil, "precision.compute: f32 would take"},
		"f32 is, and taken":  {"f32", "f32", "f32", nil, ""},
		"bf16 is":            {"f32", "f32", "bf16", nil, "precision.compute: bf16 would take"},
		"bf16 is, and taken": {"bf16", "f32", "bf16", nil, ""},
		"8-bit moments":      {"bf16", "8bit", "f32", nil, ""},
		"a small difference": {"bf16", "f32", "f32", func(m *plan.Machine) {
			m.BF16FLOPsPerSec, m.AttentionFLOPsPerSec, m.DeviceBytesPerSec = 0.99*m.F32FLOPsPerSec, m.F32AttentionFLOPsPerSec, m.F32DeviceBytesPerSec/2
		}, ""},
		"an older probe": {"bf16", "f32", "f32", func(m *plan.Machine) { m.F32AttentionFLOPsPerSec = 0 }, ""},
		"another device": {"bf16", "f32", "f32", func(m *plan.Machine) { m.Name = "another" }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			m := probe.Guess(info)
			m.Name = info.Name
			m.F32FLOPsPerSec, m.F32AttentionFLOPsPerSec, m.F32DeviceBytesPerSec = 1e9, 1e9, 2e9
			m.BF16FLOPsPerSec, m.AttentionFLOPsPerSec, m.DeviceBytesPerSec = 0.4e9, 0.4e9, 0.4e9
			if c.faster == "bf16" {
				m.BF16FLOPsPerSec, m.AttentionFLOPsPerSec, m.DeviceBytesPerSec = 3e9, 3e9, 3e9
			}
			if c.change != nil {
				c.change(&m)
			}
			env := traintest.NewEnv(t)
			env.CacheDir = t.TempDir()
			if err := plan.WriteMachine(filepath.Join(env.CacheDir, probe.MachineFile), m); err != nil {
				t.Fatal(err)
			}
			run := runfile.Defaults()
			run.Model, run.SequenceLen, run.BatchTokens, run.Device = traintest.WriteConfig(t, nil), 64, 256, "cpu"
			run.Datasets = []data.Source{{Path: "not read", Type: data.Text}}
			run.Precision.Compute, run.Precision.Moments = c.compute, c.moments
			if c.compute == "f32" {
				run.Precision.Master = "f32"
			}
			p, err := PlanFor(t.Context(), &run, PlanOptions{Env: env})
			if err != nil {
				t.Fatal(err)
			}
			text := p.String()
			if c.want == "" {
				if p.Faster != nil || strings.Contains(text, "would take") {
					t.Fatalf("%+v in\n%s", p.Faster, text)
				}
				return
			}
			if p.Faster == nil || !strings.Contains(text, c.want) {
				t.Fatalf("no %q in\n%s", c.want, text)
			}
			run.Precision.Compute, run.Precision.Master = p.Faster.Compute, p.Faster.Master
			other, err := PlanFor(t.Context(), &run, PlanOptions{Env: env})
			if err != nil {
				t.Fatal(err)
			}
			if p.Faster.StepSeconds != other.Plan.Predicted.StepSeconds || p.Faster.ProcessBytes != other.Plan.ProcessBytes() ||
				p.Faster.MoreBytes != other.Plan.ProcessBytes()-p.Plan.ProcessBytes() || (p.Faster.MoreBytes > 0) != (c.compute == "bf16") {
				t.Errorf("%+v, and a plan in that type takes %v s and %d bytes", p.Faster, other.Plan.Predicted.StepSeconds,
					other.Plan.ProcessBytes())
			}
		})
	}
}
