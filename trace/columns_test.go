package trace

import (
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

// full is a record with all fields.
func full() Metrics {
	ended := "2026-01-31T12:00:00Z"
	m := Metrics{Step: 7, Loss: 1.5, GradNorm: math.NaN(), Tokens: 100, Lanes: Lanes{0.5, 1, 0, 0.25, 0, 0, 0.125},
		Devices: []DeviceSeconds{{1, 2, 3, 4}, {5, 6, 7, 8}}, Hosts: &Hosts{StepSec: []float64{2, 3}, Slowest: "b",
			Lanes: []Lanes{{1}, {2}}, PeakBytes: []int64{10, 20}, DiskReadBytes: []int64{0, 1}, DiskWrittenBytes: []int64{0, 0}},
		AuxLoss: new(float64(2)), Experts: &Experts{Busiest: []float64{0.5, 0.75}, Entropy: []float64{1, 0.5},
			Unused: []int{0, 3}}, MaxUpdateOverLR: new(1.25), Time: &ended, Pairs: new(int64(9)), WriteWaitSec: new(0.5),
		Objective: map[string]float64{"rewards/margins": 0.1, "entropy": math.NaN()}}
	m.SetEval(Evaluation{Loss: 3, Objective: map[string]float64{"margin": 4}, Sets: map[string]Numbers{
		"task": {"loss": 2, "rewards/margins": math.Inf(1)}, "default": {"loss": 5}}})
	return m
}

// pathsOf are the numbers of a decoded value, null among them, by path: of a list within an object its index comes
// before the list's name.
func pathsOf(path string, v any, all map[string]float64) {
	switch v := v.(type) {
	case float64:
		all[path] = v
	case nil:
		all[path] = math.NaN()
	case []any:
		for i, e := range v {
			pathsOf(fmt.Sprint(path, "/", i), e, all)
		}
	case map[string]any:
		for name, e := range v {
			list, isList := e.([]any)
			if !isList {
				pathsOf(path+"/"+name, e, all)
			}
			for i, e := range list {
				pathsOf(fmt.Sprint(path, "/", i, "/", name), e, all)
			}
		}
	}
}

// Columns are the numbers of the record as a reader of the file finds them, in the order of the file.
func TestColumns(t *testing.T) {
	m := full()
	text, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	var again Metrics
	var file map[string]any
	if err := json.Unmarshal(text, &again); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	want := map[string]float64{}
	for name, v := range file {
		if name != "step" && name != "time" {
			pathsOf(strings.Replace(name, "eval_sets", "eval", 1), v, want)
		}
	}
	var names []string
	got := map[string]float64{}
	again.Columns(func(name string, x float64) {
		names = append(names, name)
		got[name] = x
	})
	if d := cmp.Diff(want, got, cmpopts.EquateNaNs()); d != "" {
		t.Errorf("-the file +Columns\n%s", d)
	}
	for name, x := range map[string]float64{"lanes/fetch": 0.5, "lanes/send": 0.125, "experts/1/unused": 3,
		"hosts/1/lanes/fetch": 2, "hosts/0/step_sec": 2, "devices/1/drain": 7, "eval/task/loss": 2, "eval_loss": 3,
		"eval_margin": 4, "rewards/margins": 0.1} {
		if got[name] != x {
			t.Errorf("%s is %v, want %v", name, got[name], x)
		}
	}
	if _, has := got["lanes/receive"]; has || !math.IsNaN(got["eval/task/rewards/margins"]) ||
		!slices.Equal(names, ColumnNames([]Metrics{again, again})) {
		t.Errorf("columns %v", names)
	}
}

// A set with a number that is not finite, or with a text among its numbers, can be read again.
func TestEvalSetsInRecords(t *testing.T) {
	var m Metrics
	text := `{"step": 1, "loss": 1, "eval_loss": 2, "eval_sets": {"a": {"loss": null, "x": "y", "margin": 3}}}`
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		t.Fatal(err)
	}
	if a := m.EvalSets["a"]; len(a) != 2 || !math.IsNaN(a[SetLoss]) || a["margin"] != 3 || m.Objective != nil {
		t.Errorf("%v, %v", m.EvalSets, m.Objective)
	}
	again, err := json.Marshal(m)
	if err != nil || !strings.Contains(string(again), `"eval_sets":{"a":{"loss":null,"margin":3}}`) {
		t.Errorf("%s (%v)", again, err)
	}
}
