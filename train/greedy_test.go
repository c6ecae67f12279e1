package train

import (
	"slices"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/runfile"
)

// The likeliest tokens are those of transformers for models of each family, with caches and where a device has none.
func TestGreedyTokensAgreeWithTransformers(t *testing.T) {
	for _, variant := range modeltest.Variants(t) {
		t.Run(variant, func(t *testing.T) {
			g := modeltest.Load(t, variant)
			for how, wrap := range map[string]func(device.Device) device.Device{
				"as the device has it": func(d device.Device) device.Device { return d },
				"without caches":       func(d device.Device) device.Device { return withoutCaches{d} }} {
				for i, got := range greedily(t, wrappedEnv(t, wrap), g) {
					if want := g.Greedy[i]; !slices.Equal(got, want.Tokens) {
						t.Errorf("%s, prompt %v:\n got %v\nwant %v", how, want.Prompt, got, want.Tokens)
					}
				}
			}
		})
	}
}

// greedily continues the prompts of a golden variant by as many tokens, in fp32.
func greedily(t *testing.T, env *Env, g *modeltest.Golden) [][]int32 {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	src, err := openTrained(t.Context(), env, g.Dir)
	check(err)
	n, err := runfile.NumericsOf("f32", "f32")
	check(err)
	dev, err := env.OpenDevices("auto")
	check(err)
	defer dev.Close()
	longest, positions := 0, 0
	for _, of := range g.Greedy {
		longest, positions = max(longest, len(of.Prompt)), max(positions, len(of.Prompt)+len(of.Tokens))
	}
	p, err := env.planTexts(t.Context(), src, n, dev, runfile.Memory{}, len(g.Greedy), positions, longest)
	check(err)
	texts, err := env.openTexts(t.Context(), p, dev, "", src)
	check(err)
	defer texts.Close()
	var made [][]int32
	for together := range slices.Chunk(g.Greedy, texts.places()) {
		ids := make([][]int32, len(together))
		for i, of := range together {
			ids[i] = slices.Clone(of.Prompt)
		}
		for range together[0].Tokens {
			logits, err := texts.next(t.Context(), ids)
			check(err)
			for i := range ids {
				ids[i] = append(ids[i], int32(slices.Index(logits[i], slices.Max(logits[i]))))
			}
		}
		for i, of := range together {
			made = append(made, ids[i][len(of.Prompt):])
		}
	}
	return made
}
