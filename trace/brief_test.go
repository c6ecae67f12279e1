package trace

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// briefOf leaves what BriefReader reads of a record.
func briefOf(m Metrics) Metrics {
	b := Metrics{Step: m.Step, Loss: m.Loss, GradNorm: m.GradNorm, Tokens: m.Tokens, TargetTokens: m.TargetTokens,
		StepSec: m.StepSec, ModelTFLOPS: m.ModelTFLOPS, DevicePeakBytes: m.DevicePeakBytes,
		HostPeakBytes: m.HostPeakBytes, DiskWrittenBytes: m.DiskWrittenBytes, WriteWaitSec: m.WriteWaitSec,
		EvalLoss: m.EvalLoss, Time: m.Time}
	for label, of := range m.EvalSets {
		if loss, ok := of[SetLoss]; ok {
			if b.EvalSets == nil {
				b.EvalSets = map[string]Numbers{}
			}
			b.EvalSets[label] = Numbers{SetLoss: loss}
		}
	}
	return b
}

// longRecord is a line with all that a step can have.
func longRecord(step int64) string {
	ended, wait, loss, pairs := "2026-03-01T12:00:00Z", 0.5, 2.25, int64(4)
	m := Metrics{Step: step, Loss: 2 + 1/float64(step+1), GradNorm: math.Inf(1), ClipScale: 1, LearningRate: 1e-5,
		Tokens: 8192, TargetTokens: 6000, TokensPerSec: 4200.5, StepSec: 1.95, ModelTFLOPS: 3.4, DevicePeakBytes: 1 << 31,
		HostPeakBytes: 1 << 40, DiskWrittenBytes: 7, WriteWaitSec: &wait, Lanes: Lanes{0.25, 0.75}, EvalLoss: &loss,
		Hosts: &Hosts{Slowest: "1 (b)", StepSec: []float64{1, 2}, Lanes: make([]Lanes, 2), PeakBytes: []int64{1, 2},
			DiskReadBytes: []int64{3, 4}, DiskWrittenBytes: []int64{5, 6}},
		EvalSets: map[string]Numbers{"task": {SetLoss: 1.5, "entropy": 2}, "memory": {SetLoss: math.NaN()}},
		Pairs:    &pairs, Time: &ended, Objective: map[string]float64{"rewards/margins": 0.5, "entropy": 1.25}}
	line, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}
	return string(line)
}

// Brief records have the numbers, and the errors, of whole ones.
func TestReadBrief(t *testing.T) {
	before, err := json.Marshal(BeforeTraining(Evaluation{Loss: 3}, "2026-03-01T11:00:00Z"))
	if err != nil {
		t.Fatal(err)
	}
	good := string(before) + "\n" + longRecord(1) + "\n"
	for _, last := range []string{longRecord(2), `{"step":2}`, `{"step":2,"loss":null,"tokens":null,"eval_loss":null}`,
		`{"step":2.5}`, `{"step":null}`, `{"loss":1}`, `{"step":2,"loss":"x"}`, `{"step":2,"tokens":1.5}`,
		`{"step":2,"tokens":1e300}`, `{"step":2,"loss":1e999}`, `{"step":2,"loss":true}`, `{"step":2,"lanes":7}`,
		`{"step":-2,"loss":1}`, `{"step":2,"eval_sets":{"a":{"loss":"x","b":1},"c":{"loss":null}}}`, `[]`, `{"step":2`,
		`{"step":2,"loss":1,"grad_norm":1,"step_sec":1,"model_tflops":1,"of_another_version":"text"}`} {
		text := good + last + "\n" + longRecord(3) + "\n" + `{"step":4,"lo`
		want, errWant := ReadMetrics(strings.NewReader(text))
		for i := range want {
			want[i] = briefOf(want[i])
		}
		got, err := ReadBrief(strings.NewReader(text))
		for i := range got {
			got[i] = briefOf(got[i])
		}
		if d := cmp.Diff(want, got, cmpopts.EquateNaNs()); d != "" || fmt.Sprint(err) != fmt.Sprint(errWant) {
			t.Errorf("%s: error %v, want %v; -whole +brief:\n%s", last, err, errWant, d)
		}
	}
}

// All of the numbers of a record have the names that its columns have.
func TestEachNumber(t *testing.T) {
	var m Metrics
	line := []byte(longRecord(1))
	if err := json.Unmarshal(line, &m); err != nil {
		t.Fatal(err)
	}
	want, got := map[string]float64{}, map[string]float64{}
	m.Columns(func(name string, x float64) { want[name] = x })
	r := BriefReader{Each: func(name []byte, x float64) { got[string(name)] = x }}
	if _, ok := r.Read(line); !ok {
		t.Fatal("it is no record")
	}
	if d := cmp.Diff(want, got, cmpopts.EquateNaNs()); d != "" {
		t.Errorf("-columns +each:\n%s", d)
	}
}

func BenchmarkReadMetrics(b *testing.B) {
	var text strings.Builder
	for step := range int64(1000) {
		text.WriteString(longRecord(step+1) + "\n")
	}
	for name, read := range map[string]func() ([]Metrics, error){
		"whole": func() ([]Metrics, error) { return ReadMetrics(strings.NewReader(text.String())) },
		"brief": func() ([]Metrics, error) { return ReadBrief(strings.NewReader(text.String())) }} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(text.Len()))
			for b.Loop() {
				if all, err := read(); err != nil || len(all) != 1000 {
					b.Fatal(err)
				}
			}
		})
	}
}
