package generate

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/device/cpu"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/model/modeltest"
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

// The log-probabilities of drawn tokens are those that a trainer computes of them. On a CPU they are the same bits in
// both types: a row of a product, and a position of attention, are summed in one order, whatever others a pass has. A
// gated delta net goes through a text in chunks, and continues it by one position: its last bits differ. By longrope a
// token is drawn with the frequencies of the text that there is, and the trainer has those of the whole text.
func TestLogProbsAreTheTrainers(t *testing.T) {
	all := modeltest.Variants(t)
	if testing.Short() {
		all = []string{"llama", "qwen3", "mistral-window", "gemma2", "gpt_oss", "deepseek_v3", "gemma4-shared", "qwen3_5"}
	}
	deltas := modeltest.DeltaVariants(t)
	for precision, ofDeltas := range map[string]float64{"f32": 5e-6, "bf16": 0.02} {
		var attention, recurrent, turned apart
		for _, variant := range all {
			g := modeltest.Load(t, variant)
			of, most := &attention, 0.0
			if slices.Contains(deltas, variant) {
				of, most = &recurrent, ofDeltas
			}
			var own apart
			texts := drawnTexts(t, precision, g)
			for i, trained := range trainersLogProbs(t, precision, g.Dir, texts) {
				for j, got := range texts[i].logProbs {
					d, length := math.Abs(float64(got-trained[texts[i].prompt+j-1])), texts[i].prompt+j
					if variant == "phi3" && length <= 12 { // its original positions
						turned.add(d)
					} else {
						own.add(d)
					}
				}
			}
			if own.n < 32 || !(own.most <= most) {
				t.Errorf("%s in %s: sampler and trainer differ by %v, want %.2g", variant, precision, &own, most)
			}
			of.merge(own)
		}
		t.Logf("%s: sampler and trainer differ by %v; with gated delta nets by %v; of texts "+
			"that longrope counts as short until they have grown by %v", precision, &attention, &recurrent, &turned)
		if !testing.Short() && !(turned.most > 0.01) {
			t.Errorf("%s: longrope makes no difference: %v", precision, &turned)
		}
	}
}

// apart are differences of log-probabilities, in nats.
type apart struct {
	n         int
	most, sum float64
}

func (a *apart) add(d float64) { a.merge(apart{1, d, d}) }

func (a *apart) merge(b apart) { a.n, a.most, a.sum = a.n+b.n, max(a.most, b.most), a.sum+b.sum }

func (a *apart) String() string {
	return fmt.Sprintf("%.2g at most, %.2g on average of %d", a.most, a.sum/float64(max(a.n, 1)), a.n)
}

// drawn is a text with its prompt, which a device has drawn.
type drawn struct {
	ids      []int32
	prompt   int
	logProbs []float32
}

// drawnTexts has the prompts of a golden file grow by as many tokens as they come with, drawn at temperature 1.
func drawnTexts(t *testing.T, precision string, g *modeltest.Golden) []drawn {
	t.Helper()
	longest, positions := 0, 0
	for _, of := range g.Greedy {
		longest, positions = max(longest, len(of.Prompt)), max(positions, len(of.Prompt)+len(of.Tokens))
	}
	texts := openTextsIn(t, precision, g.Dir, planDraws, len(g.Greedy), positions, longest)
	defer texts.Close()
	if texts.places() < len(g.Greedy) {
		t.Fatalf("%d places", texts.places())
	}
	all, at := make([]drawn, len(g.Greedy)), make([]*writing, len(g.Greedy))
	for i, of := range g.Greedy {
		all[i].prompt = len(of.Prompt)
		at[i] = newWriting(newPicker(Options{MaxTokens: len(of.Tokens), Temperature: 1, Seed: 9}, texts.Plan.Model.Vocab),
			i, slices.Clone(of.Prompt), nil, tokenizer.Bytes(), positions)
	}
	for range g.Greedy[0].Tokens {
		chosen, err := texts.choose(t.Context(), at)
		if err != nil {
			t.Fatal(err)
		}
		for i, w := range at {
			w.ids = append(w.ids, chosen[i].ID)
			all[i].ids, all[i].logProbs = w.ids, append(all[i].logProbs, chosen[i].LogProb)
		}
	}
	return all
}

// trainersLogProbs are the log-probabilities that a step computes: of the token after each of a text.
func trainersLogProbs(t *testing.T, precision, dir string, texts []drawn) (all [][]float32) {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	env := traintest.NewEnv(t)
	src, err := source.OpenTrained(t.Context(), env, dir)
	check(err)
	n, err := runfile.NumericsOf(precision, precision)
	check(err)
	for _, text := range texts {
		n.SequenceLen = max(n.SequenceLen, len(text.ids))
	}
	dev, err := env.OpenDevices("auto")
	check(err)
	defer dev.Close()
	p, err := env.FitForward(t.Context(), src.Model.Frozen(), n, 1, dev, runfile.Memory{}, plan.Outputs{LogProbs: true})
	check(err)
	s, err := source.OpenModelSession(t.Context(), env, p, dev, nil, src)
	check(err)
	defer s.Close()
	for _, text := range texts {
		b, err := data.NewBatch([]data.Example{{InputIDs: text.ids, Labels: slices.Clone(text.ids)}}, n.SequenceLen)
		check(err)
		of, err := s.Engine.LogProbs(t.Context(), session.BatchOf([]data.MicroBatch{b}))
		check(err)
		all = append(all, slices.Clone(of[0]))
	}
	return all
}
