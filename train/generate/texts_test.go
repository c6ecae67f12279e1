package generate

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/device"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/session"
	"github.com/millrace/millrace/train/source"
	"github.com/millrace/millrace/train/traintest"
)

// attending is a device that keeps the rows of each AttendCache.
type attending struct {
	device.Device
	rows *[]int
}

func (d attending) NewStream(name string) (device.Stream, error) {
	s, err := d.Device.NewStream(name)
	return attendingStream{s, d.rows}, err
}

type attendingStream struct {
	device.Stream
	rows *[]int
}

func (s attendingStream) AttendCache(out, q, k, v device.Mat, spec device.AttentionSpec) {
	*s.rows = append(*s.rows, q.Rows)
	s.Stream.AttendCache(out, q, k, v, spec)
}

// The new tokens of several prompts share passes, each of as many as a pass may have.
func TestPromptsSharePasses(t *testing.T) {
	o := Options{Model: traintest.WriteModel(t, map[string]any{"num_hidden_layers": 1}), Tokenizer: "bytes", MaxTokens: 1,
		Compute: "f32"}
	all := 0
	var prompts []string
	for i := range 30 {
		prompts = append(prompts, fmt.Sprintf("%2d ", i)+strings.Repeat("wheel ", 4))
		all += len(prompts[i])
	}
	var rows []int
	env := traintest.WrappedEnv(t, func(d device.Device) device.Device { return attending{d, &rows} })
	if err := Each(t.Context(), env, o, prompts, func(*Generated) error { return nil }); err != nil {
		t.Fatal(err)
	}
	if want := []int{session.MostPassRows, all - session.MostPassRows}; !slices.Equal(rows, want) {
		t.Errorf("passes of %d rows, not of %d", rows, want)
	}
}

// Where memory has no room for all texts at once, they have blocks for half of what they may take, then half as many of
// them grow together, and so on; where it has none for one, the error says what to change for that one.
func TestFewerTextsWhereMemoryIsShort(t *testing.T) {
	env := traintest.NewEnv(t)
	src, err := source.OpenTrained(t.Context(), env, traintest.WriteModel(t, nil))
	if err != nil {
		t.Fatal(err)
	}
	dev, err := env.OpenDevices("auto")
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	n, err := runfile.NumericsOf("f32", "f32")
	if err != nil {
		t.Fatal(err)
	}
	planOf := func(count int, hostBytes int64) (*plan.Plan, error) {
		return planLogits(t.Context(), env, src, n, dev, runfile.Memory{Host: runfile.Bytes{N: hostBytes}}, count, 100, 8)
	}
	for _, count := range []int{1, 8, 16} {
		whole, err := planOf(count, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		for _, ask := range []int{count, 2 * count, mostTexts} {
			p, err := planOf(ask, whole.ProcessBytes())
			if err != nil {
				t.Fatal(err)
			}
			got := p.Outputs.Caches
			if n := got.Sequences; n < count || p.Numerics.Positions() != 8*n || got.Blocks < got.Sequences/2 {
				t.Errorf("room for %d of %d texts, in caches %+v and passes of %d positions", count, ask, got,
					p.Numerics.Positions())
			}
			if p.ProcessBytes() > whole.ProcessBytes() {
				t.Errorf("%d bytes for %d texts, of %d", p.ProcessBytes(), ask, whole.ProcessBytes())
			}
		}
		if count == 1 {
			_, err := planOf(mostTexts, whole.ProcessBytes()-1<<12)
			if err == nil || !strings.Contains(err.Error(), "each of which makes it fit: memory.host=") {
				t.Errorf("no room for one text: %v", err)
			}
		}
	}
}

// What follows a text does not depend on the texts before it, whether the model can go back in them or begins again.
func TestTextsGoBack(t *testing.T) {
	for name, change := range map[string]map[string]any{"attention": nil, "delta nets": traintest.HybridConfig} {
		dir := traintest.WriteModel(t, change)
		used := openAny(t, dir, planLogits, 1, 40, 8)
		for _, text := range []string{"the wheel", "the wheel turns", "the wheel", "the wheel", "the weir", "a",
			"a mill"} {
			ids := byteIDs(text)
			fresh := openAny(t, dir, planLogits, 1, 40, 8)
			want, err := fresh.next(t.Context(), [][]int32{ids})
			if err != nil {
				t.Fatal(err)
			}
			got, err := used.next(t.Context(), [][]int32{ids})
			if err != nil {
				t.Fatalf("%s: %q: %v", name, text, err)
			}
			if !slices.Equal(got[0], want[0]) {
				t.Errorf("%s: after other texts, %q has other logits", name, text)
			}
			fresh.Close()
		}
		used.Close()
	}
}

// Prompts that share passes give what each gives by itself, in their order. There are more than grow together.
func TestGenerateEach(t *testing.T) {
	o := Options{Model: traintest.WriteModel(t, nil), Tokenizer: "bytes", MaxTokens: 9, Compute: "f32"}
	var prompts []string
	for i := range mostTexts + 3 {
		prompts = append(prompts, strings.Repeat(fmt.Sprint("wheel ", i), 1+i*i%11))
	}
	var all []*Generated
	keep := func(g *Generated) error {
		all = append(all, g)
		return nil
	}
	if err := Each(t.Context(), traintest.NewEnv(t), o, prompts, keep); err != nil {
		t.Fatal(err)
	}
	if len(all) != len(prompts) {
		t.Fatalf("%d results", len(all))
	}
	for _, i := range []int{0, 1, 7, mostTexts - 1, mostTexts, mostTexts + 2} {
		alone := o
		alone.Prompt = prompts[i]
		want, err := Text(t.Context(), traintest.NewEnv(t), alone)
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
	if err := Each(t.Context(), traintest.NewEnv(t), o, []string{"x", "x"}, keep); err != nil {
		t.Fatal(err)
	}
	want, err := Text(t.Context(), traintest.NewEnv(t), o)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(all[0].Tokens, want.Tokens) || slices.Equal(all[1].Tokens, want.Tokens) {
		t.Errorf("%v, %v, by itself %v", all[0].Tokens, all[1].Tokens, want.Tokens)
	}
	stop := errors.New("enough")
	err = Each(t.Context(), traintest.NewEnv(t), o, prompts, func(*Generated) error { return stop })
	if !errors.Is(err, stop) {
		t.Errorf("the error of each: %v", err)
	}
}
