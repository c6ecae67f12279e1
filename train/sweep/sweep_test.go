package sweep

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/millrace/millrace/internal/rng"
)

func TestParse(t *testing.T) {
	fixed, keys, err := Parse([]string{"learning_rate=1e-5, 2e-5,5e-5", "epochs=2", "adam_betas=[0.9, 0.95],[0.9,0.99]",
		`model="a,b",'c,d', e'f`, "samples={a: [1,2], b: 'x, y'}", "eval=", `tokenizer="q\",r",s`})
	if err != nil {
		t.Fatal(err)
	}
	want := []Key{{"learning_rate", []string{"1e-5", "2e-5", "5e-5"}},
		{"adam_betas", []string{"[0.9, 0.95]", "[0.9,0.99]"}},
		{"model", []string{`"a,b"`, "'c,d'", "e'f"}}, {"tokenizer", []string{`"q\",r"`, "s"}}}
	if d := cmp.Diff(want, keys); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"epochs=2", "samples={a: [1,2], b: 'x, y'}", "eval="}, fixed); d != "" {
		t.Error(d)
	}
	for setting, want := range map[string]string{"seed=1,,2": "value 2 of 3 is empty", "seed=1,": "value 2 of 2 is empty",
		"seed=1,2,1": "the value 1 is there twice", "model=a,'a'": "the value 'a' is there twice"} {
		if _, _, err := Parse([]string{setting}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", setting, err)
		}
	}
	if _, _, err := Parse([]string{"seed=1,2", "seed=3,4"}); err == nil || !strings.Contains(err.Error(), "twice") {
		t.Error(err)
	}
}

func TestRuns(t *testing.T) {
	keys := []Key{{"learning_rate", []string{"1e-5", "2e-5"}}, {"seed", []string{"1", "2", "3"}}}
	runs, err := Runs(keys)
	if err != nil || len(runs) != 6 || runs[0].Name != "learning_rate=1e-5,seed=1" || runs[1].Name !=
		"learning_rate=1e-5,seed=2" || runs[5].Name != "learning_rate=2e-5,seed=3" {
		t.Errorf("%v, %v", runs, err)
	}
	if d := cmp.Diff([]string{"learning_rate=2e-5", "seed=3"}, runs[5].Settings(keys)); d != "" {
		t.Error(d)
	}
	var many []string
	for i := range 40 {
		many = append(many, fmt.Sprint(i))
	}
	if _, err := Runs([]Key{{"a", many}, {"b", many}}); err == nil || !strings.Contains(err.Error(), "more than 1000") {
		t.Error(err)
	}
}

// Names of directories have no sign that a shell or a file system acts on, are short, and differ where values do.
func TestNamesAreSafe(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		value := rapid.OneOf(rapid.String(), rapid.StringMatching(`["']?[a-z/ ,.]{0,60}["']?`))
		values := rapid.SliceOfNDistinct(value, 2, 4, unquoted).Draw(rt, "values")
		runs, err := Runs([]Key{{"key", values}, {"other", values}, {"third", values}})
		if err != nil {
			rt.Fatal(err)
		}
		names := map[string]bool{}
		for _, r := range runs {
			if names[r.Name] || len(r.Name) > mostName || strings.Trim(r.Name, "abcdefghijklmnopqrstuvwxyz"+
				"ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._+-=,") != "" {
				rt.Errorf("%q of %q", r.Name, r.Values)
			}
			names[r.Name] = true
		}
	})
	for value, want := range map[string]string{"1e-5": "1e-5", `"a"`: "a", "2GiB": "2GiB", "..": "..",
		"Qwen/Qwen3-0.6B": "Qwen-Qwen3-0.6B-" + sum("Qwen/Qwen3-0.6B")} {
		if got := safe(value); got != want {
			t.Errorf("%s: %s, want %s", value, got, want)
		}
	}
}

func TestJudge(t *testing.T) {
	keys := []Key{{"learning_rate", []string{"1e-5", "2e-5", "5e-5"}}, {"seed", []string{"1", "2"}}}
	runs, err := Runs(keys)
	if err != nil {
		t.Fatal(err)
	}
	// Seed 2 is harder by 1 for all; the rests are +-0.01, -+0.02 and +-0.01.
	losses := []float64{3 + 0.01, 4 - 0.01, 2 - 0.02, 3 + 0.02, 2.5 + 0.01, 3.5 - 0.01}
	v := Judge(keys, runs, losses)
	var order []string
	for _, s := range v.Settings {
		order = append(order, fmt.Sprintf("%s %.3f", s.Values[0], s.Mean))
	}
	// The sum of squares is 2(0.01^2 + 0.02^2 + 0.01^2) = 0.0012, with 2 degrees of freedom.
	noise := 4.303 * math.Sqrt(2*0.0006/2)
	if want := []string{"2e-5 2.500", "5e-5 3.000", "1e-5 3.500"}; !slices.Equal(order, want) || v.Noise == nil ||
		math.Abs(*v.Noise-noise) > 1e-9 || math.Abs(v.Difference()-0.5) > 1e-9 {
		t.Errorf("%v, difference %g, noise %v, want %g", order, v.Difference(), v.Noise, noise)
	}
	losses[0] = math.NaN()
	if v = Judge(keys, runs, losses); len(v.Settings) != 2 || v.Settings[0].Values[0] != "2e-5" || v.Noise == nil {
		t.Errorf("without a run: %+v", v)
	}
	two := []Run{{Values: []string{"1e-5"}}, {Values: []string{"2e-5"}}}
	if v = Judge(keys[:1], two, []float64{2, 1}); v.Noise != nil ||
		len(v.Settings) != 2 || v.Difference() != 1 || v.Seeds != 1 {
		t.Errorf("without seeds: %+v", v)
	}
	if v = Judge(keys[1:], []Run{{Values: []string{"1"}}, {Values: []string{"2"}}}, []float64{2, 1}); v.Noise != nil ||
		len(v.Settings) != 1 || v.Settings[0].Mean != 1.5 || v.Difference() != 0 {
		t.Errorf("seeds alone: %+v", v)
	}
}

// Where settings make no difference, a difference of two of them exceeds the noise in about one of twenty sweeps.
func TestNoiseIsThatOfSeeds(t *testing.T) {
	keys := []Key{{"x", []string{"a", "b"}}, {"seed", []string{"1", "2", "3"}}}
	runs, err := Runs(keys)
	if err != nil {
		t.Fatal(err)
	}
	random := rng.New(1, "losses", 0, 0)
	const sweeps = 20_000
	exceeded := 0
	for range sweeps {
		var losses []float64
		for i := range runs {
			losses = append(losses, float64(i%3)+float64(random.NormFloat32()))
		}
		if v := Judge(keys, runs, losses); v.Difference() > *v.Noise {
			exceeded++
		}
	}
	if share := float64(exceeded) / sweeps; math.Abs(share-0.05) > 0.01 {
		t.Errorf("%.3f of sweeps exceed it", share)
	}
	for freedom, want := range map[int]float64{1: 12.706, 30: 2.042, 40: 2.021, 120: 1.980} {
		if got := studentT(freedom); math.Abs(got-want) > 0.003 {
			t.Errorf("%d degrees of freedom: %g, want %g", freedom, got, want)
		}
	}
}
