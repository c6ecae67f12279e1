package data

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/millrace/millrace/objective"
)

// rolloutRows are answers of three groups, not in order: of 2, 1 and 3 answers.
const rolloutRows = `{"group": 9, "sample": 1, "ids": [1, 2, 3, 4], "start": 2, "logprobs": [-0.5, null],` +
	` "finish": "length", "reward": 1, "rewards": {"math": 1, "form": null}, "old": [-1, -2], "values": [1, 2]}
{"group": 2, "sample": 0, "ids": [1, 2, 3], "start": 1, "logprobs": [-0.25, -1], "finish": "stop", "mask": [0, 1],` +
	` "reward": null, "rewards": {"form": 0.5, "math": 0}, "old": [-3, -4], "values": [3, 4]}
{"group": 9, "sample": 0, "ids": [1, 2, 5, 6, 7], "start": 2, "logprobs": [-1, -2, 0.001], "advantage": -0.75,` +
	` "version": 3, "rewards": {"math": -1, "form": 2}, "old": [-5, -6, -7], "values": [5, 6, 7]}
{"group": 11, "sample": 2, "ids": [8, 9], "start": 1, "logprobs": [-3], "rewards": {"math": null, "form": null},` +
	` "old": [-8], "values": [8]}
{"group": 11, "sample": 0, "ids": [8, 10], "start": 1, "logprobs": [-4], "rewards": {"math": 2, "form": 1},` +
	` "old": [-9], "values": [-9.5]}
{"group": 11, "sample": 1, "ids": [8, 11], "start": 1, "mask": [0], "logprobs": [-5], "old": [-10], "values": [10],` +
	` "rewards": {"math": 3, "form": 1}}
`

// TestRollouts: answers of a group follow each other by their numbers, with what their rows say, and a step has all of
// a group, from the cache as from memory.
func TestRollouts(t *testing.T) {
	s := Source{Type: Rollouts, Path: write(t, t.TempDir(), "a.jsonl", rolloutRows)}
	cache := t.TempDir()
	var prints []string
	for _, dir := range []string{"", cache, cache} {
		d, err := prepare(t, s, Options{CacheDir: dir})
		if err != nil {
			t.Fatal(err)
		}
		prints = append(prints, d.Fingerprint())
		names := d.RewardNames()
		if !slices.Equal(names, []string{"form", "math"}) || !d.HasRollouts() {
			t.Fatalf("rewards %q", names)
		}
		nan := math.NaN()
		for i, want := range []objective.Scored{
			{Group: 2, Advantage: nan, Reward: nan, Rewards: []float64{0.5, 0}, Tokens: 2, Ends: objective.Stopped},
			{Group: 9, Advantage: -0.75, Reward: nan, Rewards: []float64{2, -1}, Tokens: 3},
			{Group: 9, Advantage: nan, Reward: 1, Rewards: []float64{nan, 1}, Tokens: 2, Ends: objective.CutOff},
			{Group: 11, Advantage: nan, Reward: nan, Rewards: []float64{1, 2}, Tokens: 1},
			{Group: 11, Advantage: nan, Reward: nan, Rewards: []float64{1, 3}, Tokens: 1},
			{Group: 11, Advantage: nan, Reward: nan, Rewards: []float64{nan, nan}, Tokens: 1},
		} {
			if diff := cmp.Diff(want, d.Scored(i, names), cmpopts.EquateNaNs()); diff != "" {
				t.Errorf("answer %d: %s", i, diff)
			}
		}
		for i, want := range []string{"[-1 -1 3]", "[-1 -1 5 6 7]", "[-1 -1 3 4]", "[-1 10]", "[-1 -1]", "[-1 9]"} {
			e, err := d.Example(i)
			if got := strings.ReplaceAll(fmt.Sprint(e.Labels), fmt.Sprint(Ignore), "-1"); err != nil || got != want {
				t.Errorf("answer %d has labels %s, want %s, %v", i, got, want, err)
			}
		}
		following := func(i int, c TokenColumn, n int) string {
			all := make([]float32, n)
			if err := d.Following(i, c, all); err != nil {
				return err.Error()
			}
			return fmt.Sprint(all)
		}
		if got := following(1, TokenValues, 4) + following(4, TokenValues, 1) + following(5, TokenValues, 1); got !=
			"[0 5 6 7][10][8]" {
			t.Errorf("values %s", got)
		}
		if got := following(1, TokenLogProbs, 4) + following(2, TokenLogProbs, 3) + following(1, TokenOld, 4) +
			following(1, TokenReferences, 1) + following(5, TokenOld, 2); got !=
			"[0 -1 -2 0][0 -0.5 1][0 -5 -6 -7]the document has no such numbersthe document has no such numbers" {
			t.Errorf("columns %s", got)
		}
		stepsOfRollouts(t, d)
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if prints[0] != prints[1] || prints[1] != prints[2] {
		t.Errorf("fingerprints %q", prints)
	}
}

// stepsOfRollouts holds steps of all sizes to whole groups.
func stepsOfRollouts(t *testing.T, d *Dataset) {
	t.Helper()
	for _, x := range []struct{ length, tokens, most, cohorts, steps int }{
		{9, 9, 0, 1, 3}, {9, 18, 0, 1, 1}, {9, 18, 1, 1, 3}, {9, 18, 2, 1, 2}, {9, 18, 0, 2, 2},
	} {
		l, err := NewLoader(d, LoaderOptions{SequenceLen: x.length, BatchTokens: x.tokens, Epochs: 1, GroupsPerStep: x.most,
			Cohorts: x.cohorts})
		if err != nil {
			t.Fatal(err)
		}
		if p := l.Packing(); p.Pairs != 3 || p.Documents != 6 || p.RealTokens != 18 || p.TargetTokens != 8 {
			t.Errorf("%+v: packing %+v", x, p)
		}
		steps, seen := 0, map[int]int{}
		for {
			if _, err := next(l, x.tokens/x.length); err != nil {
				break
			}
			steps++
			in := map[int][]int{}
			for _, p := range l.Documents() {
				in[p.Group] = append(in[p.Group], p.Document)
				if p.Side != objective.Alone {
					t.Errorf("an answer has side %d", p.Side)
				}
			}
			for _, documents := range in {
				first := documents[0]
				seen[first] = len(documents)
				for i, document := range documents {
					if document != first+i {
						t.Errorf("%+v: a group has the documents %v", x, documents)
					}
				}
			}
		}
		if steps != x.steps && x.cohorts == 1 || len(seen) != 3 || seen[0] != 1 || seen[1] != 2 || seen[3] != 3 {
			t.Errorf("%+v: %d steps, of groups %v", x, steps, seen)
		}
		if got := l.Steps(); got != steps {
			t.Errorf("%+v: %d steps are told, and there are %d", x, got, steps)
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	// A step does not begin the next epoch, however much room there is: it would have answers twice.
	again, err := NewLoader(d, LoaderOptions{SequenceLen: 9, BatchTokens: 90})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if _, err := next(again, 10); err != nil || len(again.Documents()) != 6 || again.Cursor().Row != 0 {
			t.Errorf("a step of %d answers ends at %+v: %v", len(again.Documents()), again.Cursor(), err)
		}
	}
	again.Close()
	l, err := NewLoader(d, LoaderOptions{SequenceLen: 8, BatchTokens: 8, Epochs: 1})
	if err != nil {
		t.Fatal(err)
	}
	const want = "1 group left out: 1 longer than the rows of a step, or of a cohort's share of it"
	if got := l.Packing().LeftOut(8); got != want {
		t.Errorf("%q, want %q", got, want)
	}
	l.Close()
	if _, err := NewLoader(d, LoaderOptions{SequenceLen: 9, BatchTokens: 9, LongDocuments: SplitLong}); err == nil ||
		!strings.Contains(err.Error(), "half of an answer is no part of a group") {
		t.Errorf("split: %v", err)
	}
}

// TestBadRollouts: rows that do not say what an answer is are refused in a line.
func TestBadRollouts(t *testing.T) {
	const good = `"group": 0, "sample": 0, "ids": [1, 2, 3], "start": 1`
	without := func(key string) string {
		var kept []string
		for _, field := range strings.Split(strings.ReplaceAll(good, ", 2, 3", " 2 3"), ", ") {
			if !strings.HasPrefix(field, `"`+key) {
				kept = append(kept, strings.ReplaceAll(field, " 2 3", ", 2, 3"))
			}
		}
		return strings.Join(kept, ", ")
	}
	for _, c := range []struct{ row, want string }{
		{without("group"), `field "group" is missing`},
		{without("sample"), `field "sample" is missing`},
		{without("ids"), `field "ids" is missing`},
		{without("start"), `field "start" is missing`},
		{without("group") + `, "group": 1.5`, `field "group" is 1.5: it must be a whole number, and not negative`},
		{without("group") + `, "group": 1e300`, `field "group" is 1e+300: it must be a whole number`},
		{without("sample") + `, "sample": -1`, `field "sample" is -1: it must be a whole number`},
		{without("sample") + `, "sample": "x"`, `field "sample" is not a number`},
		{without("start") + `, "start": 0`, `field "start" is 0, and "ids" has 3 tokens: an answer begins after`},
		{without("start") + `, "start": 3`, `field "start" is 3, and "ids" has 3 tokens`},
		{without("ids") + `, "ids": [1, 2.5]`, `field "ids" has 2.5, which is no token`},
		{without("ids") + `, "ids": [1, 999]`, `token 1 of ids is 999, and the vocabulary has 257`},
		{without("ids") + `, "ids": {"a": 1}`, `field "ids" is no list of numbers, but an object`},
		{good + `, "logprobs": [0]`, `field "logprobs" has 1 numbers for 2 tokens of the answer, which are those of`},
		{good + `, "logprobs": []`, `field "logprobs" has 0 numbers for 2 tokens`},
		{good + `, "logprobs": [0, 0.5]`, `field "logprobs" has 0.5 at 1: a log-probability is not above 0`},
		{good + `, "logprobs": [0, "x"]`, `field "logprobs": number 0 is a text`},
		{good + `, "old": [null, 0]`, `field "old" has null at 0: only logprobs may`},
		{good + `, "ref": [null, 0]`, `field "ref" has null at 0: only logprobs may`},
		{good + `, "values": [0, null]`, `field "values" has null at 1: only logprobs may`},
		{good + `, "mask": [0, 2]`, `field "mask" has 2: a token counts (1) or not (0)`},
		{good + `, "mask": [0, null]`, `field "mask" has NaN: a token counts (1) or not (0)`},
		{good + `, "reward": 1e13`, `field "reward" is 1e+13: it must be between -1e12 and 1e12`},
		{good + `, "reward": [1]`, `field "reward" is not a number of 64 bits, but a list`},
		{good + `, "advantage": true`, `field "advantage" is not a number of 64 bits, but true`},
		{good + `, "rewards": [1]`, `field "rewards" is a list, not an object: write {"name": number or null}`},
		{good + `, "rewards": {"a": "b"}`, `field "rewards": a is a text, and must be a number or null`},
		{good + `, "rewards": {"a": -1e13}`, `field "rewards": a is -1e+13: it must be between`},
		{good + `, "rewards": {"": 1}`, `field "rewards" has a name of 0 bytes: 1 to 64`},
		{good + `, "rewards": {` + strings.TrimSuffix(strings.Repeat(`"%d": 1, `, 17), ", ") + `}`,
			`field "rewards" has 17 names: 16 at most`},
		{good + `, "finish": 5`, `field "finish" is a number: write why the answer ends as a text`},
		{good + `, "version": 0.5`, `field "version" is 0.5: it must be a whole number`},
		{good + `, "logprob": [0, 0]`, `the row has logprob, which type rollouts does not read: did you mean logprobs?: ` +
			`remove it, or list it under ignore in the entry`},
		{good + `, "prompt": "x"`, `the row has prompt, which type rollouts does not read: remove it`},
	} {
		row := c.row
		for i := range strings.Count(row, "%d") {
			row = strings.Replace(row, "%d", fmt.Sprint(i), 1)
		}
		s := Source{Type: Rollouts, Path: write(t, t.TempDir(), "a.jsonl", "{"+row+"}")}
		_, err := prepare(t, s, Options{})
		if err == nil || !strings.Contains(err.Error(), "a.jsonl:1: "+c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: error %v, want %q", row, err, c.want)
		}
	}
}

// TestBadSetsOfRollouts: answers that do not belong together are refused in a line.
func TestBadSetsOfRollouts(t *testing.T) {
	row := func(group, sample int, more string) string {
		return fmt.Sprintf("{\"group\": %d, \"sample\": %d, \"ids\": [1, 2], \"start\": 1%s}\n", group, sample, more)
	}
	for _, c := range []struct{ rows, want string }{
		{row(5, 2, "") + row(4, 2, "") + row(5, 2, ""), "group 5 has sample 2 twice: each answer of an entry needs"},
		{row(5, 0, `, "logprobs": [-1]`) + row(5, 1, ""), "it has other numbers than the rows before it"},
		{row(5, 0, `, "rewards": {"a": 1}`) + row(5, 1, ""), "it has 0 rewards by name, and the first row has 1"},
		{row(5, 0, `, "rewards": {"a": 1}`) + row(5, 1, `, "rewards": {"b": 1}`),
			`it has the rewards ["b"], and the first row has ["a"]: all rows of an entry must have the same names`},
	} {
		_, err := prepare(t, Source{Type: Rollouts, Path: write(t, t.TempDir(), "a.jsonl", c.rows)}, Options{})
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
	two := Source{Type: Rollouts, Path: write(t, t.TempDir(), "a.jsonl", row(1, 0, "")), Weight: 2}
	_, err := prepare(t, two, Options{})
	if err == nil || !strings.Contains(err.Error(), "weight is 2, and answers of type") {
		t.Errorf("a weight: %v", err)
	}
	ignored := Source{Type: Rollouts, Ignore: []string{"note"},
		Path: write(t, t.TempDir(), "a.jsonl", row(1, 0, `, "note": "x"`))}
	d, err := prepare(t, ignored, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := d.Split(1, 1); err == nil || !strings.Contains(err.Error(), "rollouts have no held-out loss") {
		t.Errorf("a split: %v", err)
	}
	needs := objective.Needs{Rollouts: true}
	for _, c := range []struct {
		kind  Type
		name  string
		needs objective.Needs
		want  string
	}{
		{Rollouts, "", objective.Needs{},
			"type rollouts needs an objective that learns from answers that were sampled: set objective: {type: policy}"},
		{Rollouts, "dpo", objective.Needs{}, "the data are of type rollouts, which objective dpo does not read"},
		{Text, "policy", needs, "objective policy learns from answers that were sampled, and the data are of type text: " +
			"they must be of type rollouts"},
	} {
		if err := CheckObjective([]Type{c.kind}, c.name, c.needs); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("error %v, want %q", err, c.want)
		}
	}
	if err := CheckObjective([]Type{Rollouts}, "policy", needs); err != nil {
		t.Error(err)
	}
}

// FuzzRollouts reads bytes as a row: what is accepted has an answer after its first token, and finite numbers.
func FuzzRollouts(f *testing.F) {
	for line := range strings.Lines(rolloutRows) {
		f.Add(line)
	}
	f.Add(`{"group": 0, "sample": "1", "ids": "[1, 2]", "start": 1, "rewards": "{\"a\": 1}"}`)
	s := rowReader{Source: Source{Type: Rollouts}.withDefaults()}
	f.Fuzz(func(t *testing.T, text string) {
		all := acceptedRow(t, s, text)
		if all == nil {
			return
		}
		if err := newBuilder().appendDocument(all[0]); err != nil {
			t.Fatal(err)
		}
		of := all[0].rollout.numbers
		if start := of[rolloutStart]; start < 1 || int(start) >= len(all[0].InputIDs) || len(of) != all[0].has.numbers() {
			t.Fatalf("numbers %v", of)
		}
		for i, column := range all[0].columns {
			for _, x := range column {
				if x-x != 0 || x > 0 && x != objective.UnknownLogProb && TokenColumn(i) != TokenValues {
					t.Fatalf("a column has %v", x)
				}
			}
		}
	})
}
