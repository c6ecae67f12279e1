package plan_test

import (
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
)

// aRound asks for 16 answers of 64 tokens to prompts of 64 positions, which take two steps.
var aRound = plan.Round{Prompts: 4, Samples: 4, PromptPositions: 64, AnswerTokens: 64, Steps: 2, Rounds: 10}

// forRounds plans steps with caches of some texts. Their weights come for each token.
func forRounds(t *testing.T, texts int) (*plan.Plan, plan.Request) {
	t.Helper()
	r, _ := onMachine(t, "llama-3.2-1b", "h100-pcie5")
	r.Outputs = plan.Outputs{LogitRows: texts, Draws: true,
		Caches: nn.Caches{Sequences: texts, Positions: 128, BlockRows: 128, Blocks: texts}}
	p, err := plan.Estimate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return p, r
}

// A forecast is what hand arithmetic says of its parts: passes and waves, the bytes of weights and caches, the link's
// time for what crosses it, and the sum of the phases.
func TestRoundsByHand(t *testing.T) {
	p, r := forRounds(t, 8)
	o := p.ForecastRound(r.Machine, r.Device, aRound)
	s := o.Sampling
	if s == nil || o.SampleSeconds == nil || o.Seconds == nil || o.RunSeconds == nil {
		t.Fatalf("%+v", o)
	}
	// 16 answers by 8 texts are two waves. Each reads two prompts in a pass, and makes 64 tokens of each text.
	if s.Texts != 8 || s.Waves != 2 || s.PromptPasses != 2 || s.Passes != 128 || o.Answers != 16 {
		t.Errorf("%+v", s)
	}
	// Llama 3.2 1B has 16 blocks, 8 heads of keys and values of 64 columns. At the mean length of 96 positions a text sees
	// a block of 128.
	if want := int64(16 * 2 * 8 * 64 * 2 * 8 * 128); s.CacheReadBytes != want || s.CacheBytes < want {
		t.Errorf("a pass reads %d bytes of caches of %d, and %d by hand", s.CacheReadBytes, s.CacheBytes, want)
	}
	params, _ := p.Model.Params()
	if float64(s.WeightBytes) < 2*float64(params) || float64(s.WeightBytes) > 2.02*float64(params) {
		t.Errorf("a pass reads %d bytes of weights, and the model has %d parameters", s.WeightBytes, params)
	}
	link := float64(s.MovedWeightBytes)/r.Machine.UploadBytesPerSec +
		float64(s.MovedCacheBytes)/2/r.Machine.UploadBytesPerSec
	if s.MovedWeightBytes == 0 || s.PassSec < link || s.PassSec > 1.25*link {
		t.Errorf("a pass takes %v s, and what crosses the link %v s", s.PassSec, link)
	}
	for _, sum := range [][2]float64{
		{*o.SampleSeconds, s.BringSec + s.PromptSec + float64(s.Passes)*s.PassSec},
		{*o.Seconds, *o.SampleSeconds + o.TrainSeconds + o.HandoverSeconds},
		{*o.SampledPerSec, 16 * 64 / *o.SampleSeconds},
		{*o.RunSeconds, 10 * *o.Seconds},
	} {
		if math.Abs(sum[0]-sum[1]) > 1e-9*sum[1] {
			t.Errorf("%v is not %v", sum[0], sum[1])
		}
	}
	if o.Limit != "sample" || !strings.HasPrefix(o.Why, "the link: ") {
		t.Errorf("what limits it is %s: %s", o.Limit, o.Why)
	}
	// Steps take no longer than without a loop, and the updates of the last one are not hidden.
	if o.TrainSeconds > 2*p.Predicted.StepSeconds*(1+1e-9) || o.HandoverSeconds <= 0 {
		t.Errorf("two steps take %v s of %v each, and the hand-over %v s", o.TrainSeconds, p.Predicted.StepSeconds,
			o.HandoverSeconds)
	}
}

// Passes before the first step and those of a reference are phases of a round: they are part of its sum, and one of
// them may be the longest phase.
func TestRoundsCountOtherPasses(t *testing.T) {
	p, r := forRounds(t, 8)
	was := p.ForecastRound(r.Machine, r.Device, aRound)
	q := aRound
	q.Batches, q.Referenced = 2, true
	o := p.ForecastRound(r.Machine, r.Device, q)
	if o.EvaluateSeconds <= 0 || o.EvaluateSeconds >= o.TrainSeconds {
		t.Errorf("two steps take %v s, and two passes forward %v s", o.TrainSeconds, o.EvaluateSeconds)
	}
	if got, want := *o.Seconds, *was.Seconds+o.EvaluateSeconds; math.Abs(got-want) > 1e-9*want {
		t.Errorf("the sum is %v s, want %v", got, want)
	}
	const reads = "what the reference takes to read the answers"
	if !slices.Contains(o.Unknown, reads) {
		t.Errorf("unknown are %q", o.Unknown)
	}
	o.AddReference(1000)
	if got, want := *o.Seconds, *was.Seconds+o.EvaluateSeconds+1000; math.Abs(got-want) > 1e-9*want ||
		*o.RunSeconds != 10**o.Seconds || o.Limit != "reference" || slices.Contains(o.Unknown, reads) {
		t.Errorf("with a reference of 1000 s: %+v, want the sum %v", o, want)
	}
}

// A faster machine takes no longer for any phase, and a larger round no shorter.
func TestRoundsFollowRates(t *testing.T) {
	p, r := forRounds(t, 8)
	was := p.ForecastRound(r.Machine, r.Device, aRound)
	if was.Sampling == nil {
		t.Fatal("no sampling")
	}
	for name, faster := range map[string]func(*plan.Machine){
		"link":       func(m *plan.Machine) { m.UploadBytesPerSec *= 2; m.DownloadBytesPerSec *= 2 },
		"host":       func(m *plan.Machine) { m.HostBytesPerSec *= 2 },
		"arithmetic": func(m *plan.Machine) { m.BF16FLOPsPerSec *= 2 },
		"memory":     func(m *plan.Machine) { m.DeviceBytesPerSec *= 2 },
	} {
		m := r.Machine
		faster(&m)
		o := p.ForecastRound(m, r.Device, aRound)
		switch {
		case *o.SampleSeconds > *was.SampleSeconds*(1+1e-9) || o.HandoverSeconds > was.HandoverSeconds*(1+1e-9):
			t.Errorf("twice the %s: sampling %v s, was %v s; hand-over %v s, was %v s", name, *o.SampleSeconds,
				*was.SampleSeconds, o.HandoverSeconds, was.HandoverSeconds)
		case name == "link" && *o.SampleSeconds > 0.75**was.SampleSeconds:
			t.Errorf("sampling waits for the link, and twice its rate makes %v s of %v s", *o.SampleSeconds,
				*was.SampleSeconds)
		}
	}
	for name, larger := range map[string]func(*plan.Round){
		"prompts": func(q *plan.Round) { q.Prompts *= 2 },
		"samples": func(q *plan.Round) { q.Samples *= 2 },
		"tokens":  func(q *plan.Round) { q.AnswerTokens *= 2 },
	} {
		q := aRound
		larger(&q)
		if o := p.ForecastRound(r.Machine, r.Device, q); *o.SampleSeconds <= *was.SampleSeconds {
			t.Errorf("twice the %s: sampling takes %v s, and %v s with half of them", name, *o.SampleSeconds,
				*was.SampleSeconds)
		}
	}
}

// Weights that stay on the device take no longer than those that come for each token, and then the device's memory
// limits a pass, by what it reads.
func TestResidentSamplingIsNoSlower(t *testing.T) {
	r, _ := onMachine(t, "llama-3.2-1b", "h100-pcie5")
	r.Model = r.Model.Frozen()
	r.Numerics.SequenceLen, r.Numerics.MicroBatches = 64, 1
	f := plan.Fitting{Request: r, Rows: 1, Cuts: plan.Cuts{MicroBatch: 1, HeadChunk: 8}}
	f.Outputs = plan.Outputs{LogitRows: 8, Draws: true,
		Caches: nn.Caches{Sequences: 8, Positions: 1024, BlockRows: 128, Blocks: 64}}
	var by []*plan.RoundForecast
	for _, bytes := range []int64{5 << 30, 2 << 30} {
		f.DeviceBytes = bytes
		p, err := f.Fit(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		by = append(by, p.ForecastRound(r.Machine, r.Device, aRound))
	}
	resident, streamed := by[0], by[1]
	if resident.Sampling.MovedWeightBytes != 0 || streamed.Sampling.MovedWeightBytes == 0 ||
		*resident.SampleSeconds > *streamed.SampleSeconds {
		t.Errorf("resident %+v takes %v s, streamed %+v %v s", resident.Sampling, *resident.SampleSeconds,
			streamed.Sampling, *streamed.SampleSeconds)
	}
	s := resident.Sampling
	read := float64(s.WeightBytes+s.CacheReadBytes) / r.Machine.DeviceBytesPerSec
	if s.PassSec < read || !strings.HasPrefix(resident.Why, "the memory of the device: ") {
		t.Errorf("a pass takes %v s, reading %v s; what limits it is %s", s.PassSec, read, resident.Why)
	}
}

// How fast a server samples is not known unless it is said, and so is no sum.
func TestRoundsOfServers(t *testing.T) {
	r, _ := onMachine(t, "llama-3.2-1b", "h100-pcie5")
	p, err := plan.Estimate(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	q := aRound
	q.Server = true
	o := p.ForecastRound(r.Machine, r.Device, q)
	if o.SampleSeconds != nil || o.Seconds != nil || o.RunSeconds != nil || o.Sampling != nil ||
		!strings.Contains(strings.Join(o.Unknown, "; "), "how fast the server samples") {
		t.Errorf("%+v", o)
	}
	q.ServerPerSec, q.MostPrompts = 512, 12
	o = p.ForecastRound(r.Machine, r.Device, q)
	if o.SampleSeconds == nil || *o.SampleSeconds != 2 || *o.Seconds != 2+o.TrainSeconds+o.HandoverSeconds {
		t.Errorf("1,024 tokens at 512 a second: %+v", o)
	}
	if all := strings.Join(o.Unknown, "; "); !strings.Contains(all, "answers to up to 8 prompts more") {
		t.Errorf("unknown are %s", all)
	}
	params, _ := p.Model.Params()
	if files := 4 * float64(params) / r.Machine.HostBytesPerSec; o.HandoverSeconds < files {
		t.Errorf("a hand-over takes %v s, and its files %v s", o.HandoverSeconds, files)
	}
}

func TestRoundsAreExplained(t *testing.T) {
	p, r := forRounds(t, 8)
	var got string
	for _, server := range []float64{0, -1, 512} {
		q := aRound
		q.Server, q.ServerPerSec = server != 0, max(server, 0)
		p.Round = p.ForecastRound(r.Machine, r.Device, q)
		text := p.Explain(r.Device, r.Machine, p.Forecast(r.Machine, r.Device, 20))
		if strings.Contains(text, "\nsamples ") {
			t.Error("a round is there, and samples, too")
		}
		_, text, _ = strings.Cut(text, "\na round: ")
		text, _, _ = strings.Cut(text, "\n\n")
		got += "a round: " + text + "\n" + p.Round.Line() + "\n\n"
	}
	isGolden(t, "rounds.golden", got)
}
