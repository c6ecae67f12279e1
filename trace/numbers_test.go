package trace

import (
	"encoding/json"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// namesOf reads a line by encoding/json, the reference of numbers.
func namesOf(line []byte) map[string]float64 {
	var tree map[string]any
	if json.Unmarshal(line, &tree) != nil {
		return nil
	}
	all := map[string]float64{}
	var walk func(parent, own string, value any)
	walk = func(parent, own string, value any) {
		name := strings.TrimPrefix(parent+"/"+own, "/")
		switch v := value.(type) {
		case map[string]any:
			for key, of := range v {
				walk(name, key, of)
			}
		case []any:
			for i, of := range v {
				if parent == "" {
					walk("", fmt.Sprint(own, "/", i), of)
				} else {
					walk(parent, fmt.Sprint(i, "/", own), of)
				}
			}
		case float64:
			all[name] = v
		case nil:
			all[name] = math.NaN()
		}
	}
	for key, of := range tree {
		walk("", key, of)
	}
	return all
}

func readNumbers(line []byte) (map[string]float64, error) {
	all := map[string]float64{}
	n := numbers{take: func(name []byte, x float64) { all[string(name)] = x }}
	err := n.read(line)
	return all, err
}

var equalNumbers = cmp.Comparer(func(a, b float64) bool { return a == b || math.IsNaN(a) && math.IsNaN(b) })

// A record is read as encoding/json reads it, whatever it has.
func TestNumbers(t *testing.T) {
	loss, wait, ended := 2.5, 1e-9, "2026-01-31T12:00:00Z"
	m := Metrics{Step: 12, Loss: math.NaN(), GradNorm: math.Inf(1), LearningRate: 1e-5, Tokens: 1 << 50,
		Lanes: Lanes{1, 2, 3, 4, 5, 6, 7, 8}, Devices: make([]DeviceSeconds, 2), EvalLoss: &loss,
		WriteWaitSec: &wait, Time: &ended, Experts: &Experts{Busiest: []float64{0.5, 0.25}, Unused: []int{1, 0}},
		Hosts:     &Hosts{StepSec: []float64{1, 2}, Slowest: `a"b\`, Lanes: make([]Lanes, 2)},
		Objective: map[string]float64{"rewards/margins": -0.5, "eval_kl": math.NaN(), `a"b<é`: 7}}
	record, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{string(record), `{}`, " {\t\"step\" : 1 ,\"a\":[],\"b\":{}, \"c\":[[1,2],[3]]}\r",
		`{"x":true,"y":false,"z":"\"}","n":null,"e":-1.5E+3}`} {
		got, err := readNumbers([]byte(line))
		if d := cmp.Diff(namesOf([]byte(line)), got, equalNumbers); err != nil || d != "" && !strings.Contains(line, "[[") {
			t.Errorf("%s: error %v, -want +got:\n%s", line, err, d)
		}
	}
	got, _ := readNumbers(record)
	for _, name := range []string{"experts/1/busiest", "hosts/0/step_sec", "hosts/1/lanes/fetch", "devices/1/compute",
		"lanes/fetch", "rewards/margins", `a"b<é`} {
		if _, ok := got[name]; !ok {
			t.Errorf("there is no %s in %v", name, got)
		}
	}
	for _, line := range []string{"", "[]", "{", `{"step":1`, `{"step":1}}`, `{"step":}`, `{"step" 1}`, `{"a":1,}x`, "7",
		`{"a":"`, `{"a":"\u12"}`, `{"a":nul}`, `{"a":1e}`, strings.Repeat(`{"a":`, 100) + "1" + strings.Repeat("}", 100)} {
		if _, err := readNumbers([]byte(line)); err == nil {
			t.Errorf("%q is a record", line)
		}
	}
}

// What encoding/json reads as a record of depth that a record has, is read as it does.
func FuzzNumbers(f *testing.F) {
	for _, line := range []string{`{"step":1,"a":{"b":[1,null]},"c":"d"}`, `{"a":[{"b":1}],"e":-1e3}`} {
		f.Add([]byte(line))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		got, err := readNumbers(line)
		want := namesOf(line)
		if want == nil || strings.Count(string(line), "[")+strings.Count(string(line), "{") > 3 ||
			strings.Count(string(line), ":") != len(want) { // also names that are there twice, or have slashes
			return
		}
		if d := cmp.Diff(want, got, equalNumbers); err != nil || d != "" {
			t.Errorf("%q: error %v, -want +got:\n%s", line, err, d)
		}
	})
}
