package generate

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/millrace/millrace/data/tokenizer"
	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/nn"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
	"github.com/millrace/millrace/train/traintest"
)

// planCaches plans for texts in the given caches, in passes of some rows.
func planCaches(of nn.Caches, rows int) planning {
	return func(ctx context.Context, e *session.Env, src *source.Source, n plan.Numerics, dev *session.Devices,
		mem runfile.Memory, _, _, _ int) (*plan.Plan, error) {
		r, err := e.PlanRequest(src.Model.Frozen(), n, dev.Info(), 1, mem)
		if err != nil {
			return nil, err
		}
		f := plan.Fitting{Request: r, Rows: 1, Cuts: plan.Cuts{MicroBatch: 1, HeadChunk: of.Sequences}}
		f.Outputs, f.Numerics.SequenceLen = plan.Outputs{LogitRows: of.Sequences, Caches: of}, rows
		return f.Fit(ctx)
	}
}

// answers are texts of which several have one prompt, of different lengths.
func answers(prompts, each int) (all []*writing) {
	decoder := tokenizer.Bytes()
	for p := range prompts {
		prompt := byteIDs(fmt.Sprintf("%d: the wheel turns, and turns", p))
		for range each {
			n := len(all)
			picks := newPicker(Options{MaxTokens: 3 + 5*n%17, Temperature: 1, Seed: 7}, 256)
			all = append(all, newWriting(picks, n, slices.Clone(prompt), nil, decoder, len(prompt)+20))
		}
	}
	return all
}

// written has texts grow, and returns their tokens by number, with how often one made room for another.
func written(t *testing.T, texts *texts, queue []*writing) (made [][]int32, putOffs int) {
	t.Helper()
	g := newGrowing(texts, slices.Clone(queue))
	made = make([][]int32, len(queue))
	err := g.write(t.Context(), func(picked []int32) ([]int32, bool, error) { return picked, false, nil },
		func(w *writing) error {
			if made[w.number] != nil {
				t.Errorf("text %d ends twice", w.number)
			}
			made[w.number] = w.made.Tokens
			return nil
		})
	if err != nil {
		t.Fatal(err)
	}
	for p := range texts.read {
		g.forget(p)
	}
	if n := len(g.pool.free); n != g.pool.of.Blocks {
		t.Errorf("%d of %d blocks are free in the end", n, g.pool.of.Blocks)
	}
	return made, g.putOffs
}

// Texts are the same in as many blocks as they like and in as few as one of them takes, however often they wait for
// each other, and whichever text has read their prompts: those that each has alone.
func TestTextsShareBlocks(t *testing.T) {
	for name, change := range map[string]map[string]any{"attention": nil, "delta nets": traintest.HybridConfig} {
		dir := traintest.WriteModel(t, change)
		const most, block = 50, 4
		one := nn.Caches{Sequences: 1, Positions: most, BlockRows: most, Blocks: 1}
		alone := openAny(t, dir, planCaches(one, 64), 0, 0, 0)
		want, _ := written(t, alone, answers(3, 4))
		alone.Close()
		for _, blocks := range []int{14, 25, 200} {
			of := nn.Caches{Sequences: 6, Positions: most, BlockRows: block, Blocks: blocks}
			texts := openAny(t, dir, planCaches(of, 40), 0, 0, 0)
			got, putOffs := written(t, texts, answers(3, 4))
			if fmt.Sprint(got) != fmt.Sprint(want) {
				t.Errorf("%s, %d blocks: other texts than those that grow alone:\n%v\n%v", name, blocks, got, want)
			}
			if (putOffs > 0) != (blocks < 200) {
				t.Errorf("%s, %d blocks: %d texts made room", name, blocks, putOffs)
			}
			again, _ := written(t, texts, answers(3, 4))
			if fmt.Sprint(again) != fmt.Sprint(want) {
				t.Errorf("%s, %d blocks: other texts the second time", name, blocks)
			}
			texts.Close()
		}
	}
}

// The answers to a prompt read it once, whether the model can go back in a text or not.
func TestAnswersReadTheirPromptOnce(t *testing.T) {
	for name, change := range map[string]map[string]any{"attention": {"num_hidden_layers": 1},
		"delta nets": traintest.HybridConfig} {
		var rows []int
		env := traintest.WrappedEnv(t, func(d device.Device) device.Device { return attending{d, &rows} })
		of := nn.Caches{Sequences: 8, Positions: 60, BlockRows: 8, Blocks: 64}
		texts := openIn(t, env, "f32", traintest.WriteModel(t, change), planCaches(of, 64), 0, 0, 0)
		queue := answers(1, 8)
		if _, putOffs := written(t, texts, queue); putOffs > 0 {
			t.Errorf("%s: %d texts made room", name, putOffs)
		}
		want := len(queue[0].ids) - len(queue[0].made.Tokens) - 1 // the prompt without its last token
		for _, w := range queue {
			want += len(w.made.Tokens) // each after the token before it
		}
		sum := 0
		for _, n := range rows {
			sum += n
		}
		if sum != want {
			t.Errorf("%s: %d positions are computed, %d would do", name, sum, want)
		}
		texts.Close()
	}
}
