package train

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/hostmem"
)

// withoutCaches is a device whose streams have no operations on caches.
type withoutCaches struct{ device.Device }

func (d withoutCaches) Info() device.Info {
	info := d.Device.Info()
	info.NoCaches = true
	return info
}

// Where there are no caches all of a text is computed for each token, with the same result: also of a model whose
// rotary positions are others as soon as a text is long.
func TestGenerateWithoutCaches(t *testing.T) {
	long := map[string]any{"rope_scaling": map[string]any{"rope_type": "longrope", "factor": 4.0,
		"original_max_position_embeddings": 16, "long_factor": []float64{1, 3, 9, 20},
		"short_factor": []float64{1, 1, 1, 1}}, "head_dim": 8}
	for name, change := range map[string]map[string]any{"plain": nil, "longrope": long} {
		o := GenerateOptions{Model: writeModel(t, change), Prompt: "the wheel", Tokenizer: "bytes", MaxTokens: 20,
			Compute: "f32"}
		var made [2]*Generated
		for i, wrap := range []func(device.Device) device.Device{
			func(d device.Device) device.Device { return d },
			func(d device.Device) device.Device { return withoutCaches{d} }} {
			env := newEnv(t)
			open := env.Open
			env.Open = func(name string, a *hostmem.Accounts) (device.Device, device.Device, error) {
				d, _, err := open(name, a)
				if err != nil {
					return nil, nil, err
				}
				return wrap(d), wrap(d), nil
			}
			var err error
			if made[i], err = Generate(t.Context(), env, o); err != nil {
				t.Fatal(err)
			}
		}
		if !slices.Equal(made[0].Tokens, made[1].Tokens) || len(made[0].Tokens) < 10 {
			t.Errorf("%s: with caches %v, without %v", name, made[0], made[1])
		}
	}
}

// Prompts that share passes give what each gives by itself, in their order. There are more than grow together.
func TestGenerateEach(t *testing.T) {
	o := GenerateOptions{Model: writeModel(t, nil), Tokenizer: "bytes", MaxTokens: 9, Compute: "f32"}
	var prompts []string
	for i := range mostTexts + 3 {
		prompts = append(prompts, strings.Repeat(fmt.Sprint("wheel ", i), 1+i*i%11))
	}
	var all []*Generated
	keep := func(g *Generated) error {
		all = append(all, g)
		return nil
	}
	if err := GenerateEach(t.Context(), newEnv(t), o, prompts, keep); err != nil {
		t.Fatal(err)
	}
	if len(all) != len(prompts) {
		t.Fatalf("%d results", len(all))
	}
	for _, i := range []int{0, 1, 7, mostTexts - 1, mostTexts, mostTexts + 2} {
		alone := o
		alone.Prompt = prompts[i]
		want, err := Generate(t.Context(), newEnv(t), alone)
		if err != nil {
			t.Fatal(err)
		}
		if got := all[i]; !slices.Equal(got.Tokens, want.Tokens) || got.Finish != want.Finish ||
			got.PromptTokens != want.PromptTokens {
			t.Errorf("prompt %d: %+v, by itself %+v", i, got, want)
		}
	}
	// Choices of one prompt differ by its number, and the first one's are those of Generate.
	o.Temperature, o.Prompt, all = 1, "x", nil
	if err := GenerateEach(t.Context(), newEnv(t), o, []string{"x", "x"}, keep); err != nil {
		t.Fatal(err)
	}
	want, err := Generate(t.Context(), newEnv(t), o)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(all[0].Tokens, want.Tokens) || slices.Equal(all[1].Tokens, want.Tokens) {
		t.Errorf("%v, %v, by itself %v", all[0].Tokens, all[1].Tokens, want.Tokens)
	}
	stop := errors.New("enough")
	err = GenerateEach(t.Context(), newEnv(t), o, prompts, func(*Generated) error { return stop })
	if !errors.Is(err, stop) {
		t.Errorf("the error of each: %v", err)
	}
}
