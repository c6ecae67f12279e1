package generate

import (
	"math"
	"slices"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
	"github.com/millrace/millrace/train/traintest"
)

// onDevice draws a token of the same logits for each of the places [0, n) of a text, on a CPU.
func onDevice(t *testing.T, p *picker, logits []float32, text, n int) []stream.Drawn {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	accounts := hostmem.New()
	d, err := cpu.New(cpu.Options{Accounts: accounts})
	check(err)
	defer d.Close()
	region, err := accounts.Reserve("draws", 4<<20)
	check(err)
	defer region.Close()
	buf, err := d.Register(region)
	check(err)
	defer buf.Close()
	s, err := d.NewStream("draws")
	check(err)
	defer s.Close()
	a := device.NewArena(device.Whole(buf))
	view := func(m device.Mem) []byte { return region.Bytes()[m.Off:][:m.Len] }
	const rows = 500
	values, stat, drawn := a.Mat(tensor.F32, rows, len(logits)), a.Mat(tensor.F32, rows, device.HeadStats),
		a.Mat(tensor.F32, rows, device.DrawnFigures)
	draws := a.Take(rows * device.DrawWords * 4)
	for r := range rows {
		copy(hostmem.F32(view(values.RowRange(r, 1).Mem)), logits)
	}
	var all []stream.Drawn
	for first := 0; first < n; first += rows {
		for r := range rows {
			p.drawFor(text, first+r).Put(hostmem.I32(view(draws))[r*device.DrawWords:])
		}
		s.DrawTokens(drawn, stat, values, draws, 0, p.vocab, 0)
		check(s.Sync())
		of := hostmem.F32(view(drawn.Mem))
		for r := range rows {
			all = append(all, stream.Drawn{ID: int32(of[2*r]), LogProb: of[2*r+1]})
		}
	}
	return all[:n]
}

// Tokens that the device draws, and those that the host chooses, have the probabilities of the softmax, by Pearson's
// test: a right draw fails it once in ten thousand times, but of a fixed seed always or never. Both are the same
// tokens.
func TestDrawsFollowTheSoftmax(t *testing.T) {
	logits := []float32{0.3, -1.2, 2.1, 0.9, -3, 1.4, 0, 1.3, -0.4, 2, 0.7, -2, 9} // the last one is padding
	const vocab, draws, most = 12, 60_000, 37.4                                    // the quantile of 11 degrees of freedom
	for _, temperature := range []float64{1, 0.6, 3} {
		p := newPicker(Options{Temperature: temperature, Seed: 11}, vocab)
		var sum float64
		for _, x := range logits[:vocab] {
			sum += math.Exp(float64(x) / temperature)
		}
		device := onDevice(t, p, logits, 4, draws)
		for name, at := range map[string]func(i int) stream.Drawn{"device": func(i int) stream.Drawn { return device[i] },
			"host": func(i int) stream.Drawn { return p.token(logits, 4, i) }} {
			var counts [vocab]float64
			for i := range draws {
				d := at(i)
				if d.ID != device[i].ID {
					t.Fatalf("temperature %v: draw %d is %+v, on the device %+v", temperature, i, d, device[i])
				}
				counts[d.ID]++
				if want := float64(logits[d.ID])/temperature - math.Log(sum); math.Abs(float64(d.LogProb)-want) > 1e-6 {
					t.Fatalf("%s: the log-probability of token %d is %v, want %v", name, d.ID, d.LogProb, want)
				}
			}
			square := 0.0
			for id, n := range counts {
				want := draws * math.Exp(float64(logits[id])/temperature) / sum
				square += (n - want) * (n - want) / want
			}
			t.Logf("temperature %v, %s: chi-square is %.1f", temperature, name, square)
			if square > most {
				t.Errorf("temperature %v, %s: chi-square is %.1f, above %v: %v", temperature, name, square, most, counts)
			}
		}
	}
}

// sampled has three texts grow by up to 12 tokens, in a number format, with the log-probability of each.
func sampled(t *testing.T, precision, dir string, plans planning, temperature float64) []*Generated {
	t.Helper()
	texts := openTextsIn(t, precision, dir, plans, 3, 60, 20)
	defer texts.Close()
	p := newPicker(Options{MaxTokens: 12, Temperature: temperature, Seed: 3}, 250)
	var queue []*writing
	all := make([]*Generated, 3)
	for i, prompt := range []string{"the wheel", "a", "the river turns"} {
		queue = append(queue, newWriting(p, i, byteIDs(prompt), nil, tokenizer.Bytes(), 60))
	}
	err := texts.write(t.Context(), queue, nil, func(w *writing) (err error) {
		all[w.number], err = w.end(nil)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// Texts whose tokens the device draws are those whose tokens the host chooses from logits.
func TestDrawnTextsAreChosenTexts(t *testing.T) {
	dir := traintest.WriteModel(t, nil)
	for _, temperature := range []float64{0, 1, 0.7} {
		drawn, chosen := sampled(t, "f32", dir, planDraws, temperature), sampled(t, "f32", dir, planLogits, temperature)
		for i := range drawn {
			if !slices.Equal(drawn[i].Tokens, chosen[i].Tokens) || len(drawn[i].LogProbs) != 12 {
				t.Errorf("temperature %v: %v is drawn, %v chosen", temperature, drawn[i], chosen[i])
			}
			for j, p := range drawn[i].LogProbs {
				if q := chosen[i].LogProbs[j]; math.Abs(float64(p-q)) > 1e-6 {
					t.Errorf("temperature %v: log-probability %v, of the host %v", temperature, p, q)
				}
			}
		}
	}
}

// The log-probabilities of drawn tokens are those that a trainer computes of them. In bf16 passes of a token round
// otherwise than a whole text does.
func TestLogProbsAreTheTrainers(t *testing.T) {
	dir := traintest.WriteModel(t, map[string]any{"vocab_size": 250})
	for precision, most := range map[string]float64{"f32": 5e-7, "bf16": 0.02} {
		env := traintest.NewEnv(t)
		src, err := source.OpenModel(t.Context(), env, dir)
		if err != nil {
			t.Fatal(err)
		}
		n, err := runfile.NumericsOf(precision, precision)
		if err != nil {
			t.Fatal(err)
		}
		n.SequenceLen = 60
		dev, err := env.OpenDevices("auto")
		if err != nil {
			t.Fatal(err)
		}
		defer dev.Close()
		p, err := env.FitForward(t.Context(), src.Model.Frozen(), n, 1, dev, runfile.Memory{}, plan.Outputs{LogProbs: true})
		if err != nil {
			t.Fatal(err)
		}
		s, err := source.OpenModelSession(t.Context(), env, p, dev, nil, src)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		worst := 0.0
		for i, made := range sampled(t, precision, dir, planDraws, 1) {
			ids := append(byteIDs([]string{"the wheel", "a", "the river turns"}[i]), made.Tokens...)
			labels := slices.Clone(ids)
			b, err := data.NewBatch([]data.Example{{InputIDs: ids, Labels: labels}}, n.SequenceLen)
			if err != nil {
				t.Fatal(err)
			}
			of, err := s.Engine.LogProbs(t.Context(), session.BatchOf([]data.MicroBatch{b}))
			if err != nil {
				t.Fatal(err)
			}
			for j, got := range made.LogProbs {
				want := of[0][made.PromptTokens+j-1]
				worst = max(worst, math.Abs(float64(got-want)))
			}
		}
		t.Logf("%s: log-probabilities of sampler and trainer differ by %.2g at most", precision, worst)
		if worst > most {
			t.Errorf("%s: log-probabilities differ by %.2g, more than %.2g", precision, worst, most)
		}
	}
}
