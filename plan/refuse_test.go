package plan_test

import (
	"context"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/tensor"
)

// A document cannot be longer than a model has weights for.
func TestLearnedPositions(t *testing.T) {
	for positions, want := range map[int]string{39: "",
		40: "sequence_len 40 is more than the 39 positions that the model has weights for; lower sequence_len"} {
		m, err := model.Read(modeltest.Load(t, "gpt2").Dir)
		if err != nil {
			t.Fatal(err)
		}
		n := numerics(1, false)
		n.SequenceLen = positions
		request := plan.Request{Model: m, Numerics: n, Machine: machine, Device: device.Info{Unified: true}}
		got := ""
		if err := request.Fits(context.Background()); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%d positions: %q", positions, got)
		}
	}
}

// Cohorts are as large as each other.
func TestCohortsThatCannotBe(t *testing.T) {
	m, err := model.Read(modeltest.Load(t, "mixtral").Dir)
	if err != nil {
		t.Fatal(err)
	}
	request := plan.Request{Machine: machine, Device: device.Info{Unified: true}}
	for _, c := range []struct {
		cohorts  int
		exchange tensor.DType
		want     string
	}{
		{1, 0, ""}, {2, 0, ""}, {2, tensor.BF16, ""},
		{-1, 0, "numerics.groups is -1"},
		{3, 0, "numerics.groups is 3: it must divide the 4 micro-batches of a step"},
		{2, tensor.F32, "numerics.exchange: sums are bf16, or fp32 where it is 0, and cannot be f32"},
		{1, tensor.BF16, "numerics.exchange is bf16, the type in which sums of groups are added, and "},
	} {
		request.Model, request.Numerics = m, numerics(4, false)
		request.Numerics.Cohorts, request.Numerics.Exchange = c.cohorts, c.exchange
		err := request.Fits(t.Context())
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) {
			t.Errorf("%d cohorts: %v", c.cohorts, err)
		}
	}
	request.Model, request.Numerics = m, numerics(0, false)
	request.Numerics.Cohorts = 3
	fit := plan.Fitting{Request: request}
	for _, c := range []struct {
		rows, micro int
		want        string
	}{
		{6, 0, ""}, {6, 2, ""},
		{7, 0, "numerics.groups is 3: it must divide the 7 sequences of a step"},
		{6, 3, "numerics.micro_batch is 3: it must divide the 2 sequences of a group"},
	} {
		fit.Rows, fit.Cuts.MicroBatch = c.rows, c.micro
		p, err := fit.Fit(t.Context())
		if c.want != "" && (err == nil || !strings.HasPrefix(err.Error(), c.want)) || c.want == "" && err != nil {
			t.Errorf("%d rows, %d of them in a micro-batch: %v", c.rows, c.micro, err)
		}
		if err != nil {
			continue
		}
		if n := p.Numerics; n.MicroBatches*n.MicroBatch != c.rows || n.CohortMicros()*3 != n.MicroBatches {
			t.Errorf("%d rows are cut into %d micro-batches of %d", c.rows, n.MicroBatches, n.MicroBatch)
		}
	}
}

// Passes that continue sequences are one micro-batch each.
func TestCachesWithOneMicroBatch(t *testing.T) {
	caches := nn.Caches{Sequences: 1, Positions: 9}
	request := plan.Request{Model: tiny.model(t).Frozen(), Numerics: numerics(1, false), Machine: machine,
		Device: device.Info{Unified: true}, Outputs: plan.Outputs{LogitRows: 1, Caches: caches}}
	if err := request.Fits(context.Background()); err != nil {
		t.Fatal(err)
	}
	request.Numerics = numerics(2, false)
	const want = "a step has 2 micro-batches, and a pass that continues sequences is one"
	if err := request.Fits(context.Background()); err == nil || !strings.Contains(err.Error(), want) {
		t.Error(err)
	}
	request.Outputs.Caches = nn.Caches{}
	if err := request.Fits(context.Background()); err != nil {
		t.Error(err)
	}
}
