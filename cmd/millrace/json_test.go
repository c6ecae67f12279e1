package main

import (
	"encoding/json"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/millrace/millrace/trace"
	"github.com/millrace/millrace/train"
)

func TestNotFiniteIsNull(t *testing.T) {
	inf := math.Inf(1)
	s := train.Summary{Steps: 3, LastLoss: math.NaN(), EvalAfter: &inf, Lanes: trace.Lanes{trace.Update: 0.5}, Model: "m"}
	var out strings.Builder
	p := &program{stdout: &out}
	if err := p.printJSON(&s); err != nil {
		t.Fatal(err)
	}
	got := jsonOf[map[string]any](t, out.String())
	if got["last_loss"] != nil || got["eval_loss_after"] != nil {
		t.Errorf("not null: %s", out.String())
	}
	// All else is as encoding/json has it.
	s.LastLoss, *s.EvalAfter = 0, 0
	plain, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	want := jsonOf[map[string]any](t, string(plain))
	want["last_loss"], want["eval_loss_after"] = nil, nil
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}
