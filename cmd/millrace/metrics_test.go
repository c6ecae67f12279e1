package main

import (
	"encoding/csv"
	"strconv"
	"strings"
	"testing"

	"github.com/millrace/millrace/report"
)

// The CSV has the numbers of the records, to the bit, in columns by their paths.
func TestMetrics(t *testing.T) {
	w := newWorkshop(t)
	invoke(t, "train", w.path("run.yaml"), "--set", "eval={every: 2, datasets: [{path: "+w.path("data/b.txt")+
		", type: text, eval_set: task}]}").must(t)
	rows, err := csv.NewReader(strings.NewReader(invoke(t, "metrics", w.path("out"), "--csv").must(t).stdout)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	r, err := report.Read(w.path("out"))
	if err != nil {
		t.Fatal(err)
	}
	at := map[string]int{}
	for i, name := range rows[0] {
		at[name] = i
	}
	number := func(row int, name string) float64 {
		x, err := strconv.ParseFloat(rows[row][at[name]], 64)
		if err != nil {
			t.Fatal(err)
		}
		return x
	}
	if len(rows) != 5 || rows[1][0] != "0" || rows[1][at["loss"]] != "" || rows[2][at["eval_loss"]] != "" ||
		rows[0][1] != "time" || rows[4][1] != *r.Records[2].Time {
		t.Fatalf("%q", rows)
	}
	for i, m := range r.Records {
		if number(i+2, "step") != float64(m.Step) || number(i+2, "loss") != m.Loss ||
			number(i+2, "lanes/compute") != m.Lanes[1] || number(i+2, "tokens") != float64(m.Tokens) {
			t.Errorf("record %d is %q", i, rows[i+2])
		}
	}
	if x := number(3, "eval/task/loss"); x != *r.Records[1].EvalLoss || x != number(3, "eval_loss") ||
		number(1, "eval/task/loss") <= x {
		t.Errorf("the set has %v after step 2, and %v before training", x, number(1, "eval/task/loss"))
	}
	some := invoke(t, "metrics", w.path("out/metrics.jsonl"), "--csv", "--columns", "eval/*/loss,loss").must(t).stdout
	if lines := strings.Split(some, "\n"); lines[0] != "step,time,eval/task/loss,loss" || len(lines) != 6 {
		t.Errorf("it prints %s", some)
	}
	table := invoke(t, "metrics", w.path("out")).must(t).stdout
	for _, line := range strings.Split(table, "\n") {
		if f := strings.Fields(line); len(f) > 0 && (f[0] == "eval/task/loss" || f[0] == "loss") && f[1] != "3" {
			t.Errorf("the table has %q", line)
		}
	}
	if !strings.HasPrefix(table, "column") || strings.Count(table, "\n") != len(rows[0])-1 {
		t.Errorf("the table is %s", table)
	}
	for _, c := range [][2]string{{"--columns=los", "have no los: did you mean loss"}, {"--columns=[", "is no pattern"}} {
		if r := invoke(t, "metrics", w.path("out"), c[0]); r.status != exitBadRequest || !strings.Contains(r.stderr, c[1]) {
			t.Errorf("%s: status %d, %s", c[0], r.status, r.stderr)
		}
	}
}
