package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The calls on a lent card: their rows exist, their planned seconds fit in the budget with what the end takes, and both
// fit into the fifteen minutes that there are, with a minute or more to start the machine.
func TestCalls(t *testing.T) {
	var whole time.Duration
	for name, c := range calls {
		o := &config{call: name, only: "*"}
		if err := o.choose(rows); err != nil {
			t.Fatal(err)
		}
		planned := reserve
		for i, r := range o.rows {
			planned += r.planned
			if r.name != c.rows[i].name || r.planned <= 0 || r.least > r.planned || r.most < r.planned {
				t.Errorf("call %s: %+v", name, r)
			}
		}
		if planned > o.budget || o.budget != c.budget || !o.rows[1].opens {
			t.Errorf("call %s: %v are planned, and its budget is %v", name, planned, o.budget)
		}
		whole += o.budget
	}
	if most := 15*time.Minute - 80*time.Second; whole > most {
		t.Errorf("the calls take %v, and there are %v", whole, most)
	}
	o := &config{call: "a", only: "open bench*", budget: sec(90)}
	if err := o.choose(rows); err != nil || o.budget != sec(90) || len(o.rows) < 3 || o.rows[0].name != "open" {
		t.Errorf("some rows of a call: %v, %+v", err, o)
	}
	var stderr bytes.Buffer
	if status := run([]string{"--call", "c"}, &stderr, &stderr, rows); status != exitRequest ||
		!strings.Contains(stderr.String(), `--call is "c", and the calls are a, b`) {
		t.Errorf("status %d, %q", status, &stderr)
	}
	// No call repeats what another one asks, except for what is known of the machine.
	for _, r := range calls["b"].rows {
		if slices.ContainsFunc(calls["a"].rows, func(a callRow) bool { return a.name == r.name }) &&
			!slices.Contains([]string{"machine", "open", "probe"}, r.name) {
			t.Errorf("both calls have the row %s", r.name)
		}
	}
}

// A row of a call that takes too long gives its seconds to those after it, and one that no longer fits is not begun.
func TestCallsKeepTheirBudget(t *testing.T) {
	defer func(before map[string]call) { calls = before }(calls)
	calls = map[string]call{"x": {sec(60), []callRow{{"quick", sec(1)}, {"long", sec(80)}, {"last", sec(2)}}}}
	began := map[string]bool{}
	all := []row{}
	for _, name := range []string{"last", "long", "quick", "other"} {
		all = append(all, row{name: name, most: time.Hour, run: func(*check) (string, error) {
			began[name] = true
			return "", nil
		}})
	}
	status, printed, out := checked(t, all, "--call", "x")
	table := tableOf(t, out)
	if status != exitDone || !began["quick"] || !began["last"] || began["long"] || began["other"] ||
		table["long"].Result != left || table["last"].Planned != 2 || !strings.Contains(printed, "s of   2") {
		t.Errorf("status %d, %v\n%s", status, began, printed)
	}
}

// A host's memory is what the system has, or less where a container may not have all of it.
func TestHostMemory(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	info := write("meminfo", "MemTotal:       131981132 kB\nMemFree:  1 kB\n")
	for limit, want := range map[string]int64{"max\n": 131981132 << 10, "1073741824\n": 1 << 30, "": 131981132 << 10,
		"999999999999999\n": 131981132 << 10} {
		if got := hostMemory(info, write("limit", limit)); got != want {
			t.Errorf("limit %q: %d bytes, want %d", limit, got, want)
		}
	}
	if got := hostMemory(filepath.Join(dir, "missing"), ""); got != 0 {
		t.Errorf("nothing says, and it has %d bytes", got)
	}
	if got := hostMemory(write("odd", "nothing"), ""); got != 0 {
		t.Errorf("nothing is said, and it has %d bytes", got)
	}
}
