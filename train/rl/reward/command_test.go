package reward

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/millrace/millrace/internal/fault"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/runfile"
)

// judged has a panel judge answers with these completions, and returns what it says.
func judged(t *testing.T, specs []runfile.Reward, o Options, completions ...string) (*Results, error) {
	t.Helper()
	if specs[0].URL == "" { // a server of a test has goroutines too
		defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	}
	p, err := Open(t.Context(), specs, o)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for i, c := range completions {
		if err := p.Judge(Answer{ID: int64(i), Completion: c}); err != nil {
			return nil, err
		}
	}
	return p.Wait(t.Context())
}

// rewards are the rewards of a step with one judge, as text.
func rewards(r *Results) string {
	var all []string
	for _, s := range r.Scores {
		all = append(all, fmt.Sprint(s.Rewards[0]))
	}
	return strings.Join(all, " ")
}

// counts are the causes that a tally counts.
func counts(t Tally) string {
	var all []string
	for c, n := range t.Counts {
		if n > 0 {
			all = append(all, fmt.Sprintf("%d %v", n, Cause(c)))
		}
	}
	return strings.Join(all, ", ")
}

// Each way in which a process judges well or badly: the step has these rewards, and these counts.
func TestCommands(t *testing.T) {
	few := []string{"a", "bb", "ccc", "dddd", "eeeee", "ffffff", "ggggggg", "hhhhhhhh"}
	const lengths = "1 2 3 4 5 6 7 8"
	nulls := strings.TrimSpace(strings.Repeat("NaN ", len(few)))
	for _, c := range []struct {
		command       []string
		workers       int
		rewards, says string
		restarts      bool
	}{
		{played("well"), 1, lengths, "8 scored", false},
		{played("well"), 3, lengths, "8 scored", false},
		{played("backwards", "8"), 1, lengths, "8 scored", false},
		{played("babble"), 2, lengths, "8 scored", false},
		{played("null"), 2, nulls, "8 null", false},
		{played("nan"), 1, nulls, "8 not_finite", false},
		{played("text"), 1, nulls, "8 malformed", true},
		{played("stray"), 2, nulls, "8 stray", true},
		{played("dead"), 2, nulls, "8 exited", true},
		{played("long"), 1, nulls, "8 too_long", true},
		{played("exit", "3"), 1, lengths, "8 scored", true},
		{played("exit", "0"), 1, nulls, "8 exited", true},
		{played("once"), 1, lengths, "8 scored", true},
		{played("twice"), 1, lengths, "8 scored", true},
	} {
		t.Run(fmt.Sprint(c.command[2:], c.workers), func(t *testing.T) {
			spec := []runfile.Reward{{Name: "a", Command: c.command, Workers: c.workers}}
			r, err := judged(t, spec, Options{after: never}, few...)
			if err != nil {
				t.Fatal(err)
			}
			tally := r.Tallies[0]
			if rewards(r) != c.rewards || counts(tally) != c.says || tally.Restarts > 0 != c.restarts {
				t.Errorf("%s; %s; %d restarts", rewards(r), counts(tally), tally.Restarts)
			}
			if m := tally.Metrics["bytes"]; c.rewards == lengths &&
				(m != 4.5 || tally.Mean != 4.5 || tally.Std != math.Sqrt(6)) {
				t.Errorf("%+v", tally)
			}
		})
	}
}

// A process that closes its output has no more to say, although it runs.
func TestClosedOutput(t *testing.T) {
	r, err := judged(t, []runfile.Reward{{Name: "a", Command: played("closed")}}, Options{after: never}, "a")
	if err != nil || rewards(r) != "NaN" || counts(r.Tallies[0]) != "1 exited" {
		t.Error(r, err)
	}
}

// One answer that ends the process has no reward, and those that the process had with it have one.
func TestPoison(t *testing.T) {
	all := slices.Repeat([]string{"a", "bb", "poison", "ccc"}, 8)
	r, err := judged(t, []runfile.Reward{{Name: "a", Command: played("poison"), Workers: 2}}, Options{after: never},
		all...)
	if err != nil {
		t.Fatal(err)
	}
	if want := strings.TrimSpace(strings.Repeat("1 2 NaN 3 ", 8)); rewards(r) != want {
		t.Errorf("%s; %s", rewards(r), counts(r.Tallies[0]))
	}
}

// Ten answers in a row end the panel, with the end of what the process said.
func TestTenInARow(t *testing.T) {
	for how, want := range map[string]string{
		"dead": "reward a: 10 answers in a row have failed; of the last one the process ended: exit status 1: ",
		"nan":  `reward a: 10 answers in a row have failed; of the last one it wrote "{\"id\"`,
		"text": `of the last one it wrote "debug: x" where a line such as {"id": 1, "reward": 0.5} is expected`,
		"long": "of the last one it wrote a line of more than 1 MiB",
	} {
		_, err := judged(t, []runfile.Reward{{Name: "a", Command: played(how)}}, Options{after: never},
			slices.Repeat([]string{"x"}, 10)...)
		failed, ok := errors.AsType[*FailedError](err)
		if !ok || failed.Name != "a" || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") ||
			how == "dead" && !strings.HasSuffix(err.Error(), "KeyError: 'answer'") {
			t.Errorf("%s: %v, want %q", how, err, want)
		}
	}
}

// The process has what the contract says, and PATH, HOME and what env lists of the environment.
func TestContract(t *testing.T) {
	t.Setenv("PATH", "/bin")
	t.Setenv("HOME", "/")
	t.Setenv("JUDGE", "x")
	p, err := Open(t.Context(), []runfile.Reward{{Name: "echo", Command: played("echo")},
		{Name: "environment", Command: played("environment"), Env: []string{"JUDGE"}, Weight: optim.Given(10)},
		{Name: "none", Command: played("null")}}, Options{after: never})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	err = p.Judge(Answer{ID: 5, Prompt: "p\n", Completion: "four", CompletionIDs: []int32{3, 4}, Finish: "stop",
		Messages: json.RawMessage("[{\"role\":\"user\",\n\"content\":\"<p>\"}]"), Row: json.RawMessage("{\n\"answer\": 7}")})
	if err != nil {
		t.Fatal(err)
	}
	r, err := p.Wait(t.Context())
	if err != nil || len(r.Scores) != 1 {
		t.Fatal(r, err)
	}
	if s := r.Scores[0]; s.ID != 5 || s.Rewards[0] != 4 || s.Rewards[1] != 3 || !math.IsNaN(s.Rewards[2]) ||
		s.Total != 34 {
		t.Errorf("%+v", s)
	}
	if r, err := p.Wait(t.Context()); err != nil || len(r.Scores) != 0 {
		t.Errorf("of no step: %+v, %v", r, err)
	}
	if _, err := Open(t.Context(), []runfile.Reward{{Name: "a", Command: played("echo"), Env: []string{"NO_SUCH"}}},
		Options{}); err == nil || !strings.Contains(err.Error(), "rl.reward[0] (a): env lists NO_SUCH") {
		t.Error(err)
	}
	if _, err := Open(t.Context(), []runfile.Reward{{Name: "a", Command: []string{"no/such program"}}},
		Options{}); err == nil || !strings.Contains(err.Error(), "no program no/such program") {
		t.Error(err)
	}
}

// Results do not depend on the order in which answers come, nor on workers.
func TestOrderChangesNothing(t *testing.T) {
	var want string
	for workers := 1; workers <= 3; workers++ {
		p, err := Open(t.Context(), []runfile.Reward{{Name: "a", Command: played("poison"), Workers: workers}},
			Options{after: never})
		if err != nil {
			t.Fatal(err)
		}
		ids := make([]int, 40)
		for i := range ids {
			ids[i] = i * 7 * workers % 40
			if workers == 2 {
				ids[i] = 39 - i
			}
		}
		if workers == 3 {
			slices.SortFunc(ids, func(a, b int) int { return cmp.Compare(a*17%41, b*17%41) })
		}
		var handing fault.Group
		for half := range 2 {
			handing.Go(func() {
				for _, i := range ids[half*20:][:20] {
					completion := strings.Repeat("x", i)
					if i%9 == 4 {
						completion = "poison"
					}
					if err := p.Judge(Answer{ID: int64(i), Completion: completion}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		handing.Wait()
		r, err := p.Wait(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p.Close()
		got := fmt.Sprint(r.Scores, r.Tallies[0].Mean, r.Tallies[0].Std, r.Tallies[0].Counts,
			slices.Sorted(maps.Values(r.Tallies[0].Metrics)))
		if want == "" {
			want = got
		}
		if got != want {
			t.Errorf("%d workers:\n%s\nwant\n%s", workers, got, want)
		}
	}
}

// A context ends a panel whose processes hang, and so does Close. No process is left.
func TestEnds(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	ctx, cancel := context.WithCancel(t.Context())
	p, err := Open(ctx, []runfile.Reward{{Name: "a", Command: played("hang"), Workers: 3}}, Options{after: never})
	if err != nil {
		t.Fatal(err)
	}
	for i := range int64(100) {
		if err := p.Judge(Answer{ID: i, Completion: strings.Repeat("x", 1<<16)}); err != nil {
			t.Fatal(err)
		}
	}
	if err := p.Judge(Answer{ID: 5}); err == nil || !strings.Contains(err.Error(), "judged twice") {
		t.Error(err)
	}
	err = p.Judge(Answer{ID: 500, Row: json.RawMessage("{")})
	if err == nil || !strings.Contains(err.Error(), "not JSON") {
		t.Error(err)
	}
	fault.Go(cancel)
	if _, err := p.Wait(t.Context()); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := p.Judge(Answer{ID: 1000}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	p.Close()
	if p, err = Open(t.Context(), []runfile.Reward{{Name: "a", Command: played("hang")}}, Options{}); err != nil {
		t.Fatal(err)
	}
	p.Judge(Answer{ID: 1})
	own, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Wait(own); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	p.Close()
	if err := p.Judge(Answer{ID: 2}); !errors.Is(err, errClosed) {
		t.Error(err)
	}
}
