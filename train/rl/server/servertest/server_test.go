package servertest

import (
	"context"
	"math"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/rl/sampler"
	"github.com/millrace/millrace/train/rl/server"
	"github.com/millrace/millrace/vfs"
)

// toy answers by the first number of its weights, the prompt's group, and the number of the answer.
type toy struct{ weight float32 }

func openToy(dir string) (sampler.Sampler, func() error, error) {
	w, err := hf.OpenWeights(dir)
	if err != nil {
		return nil, nil, err
	}
	defer w.Close()
	row := make([]float32, 2)
	err = w.ReadF32("model.embed_tokens.weight", row, 0)
	return &toy{row[0]}, func() error { return nil }, err
}

func (y *toy) Name() string { return "toy" }

func (y *toy) Sample(_ context.Context, prompts []sampler.Prompt, p sampler.Params,
	done func(sampler.Completion) error) error {
	for i, q := range prompts {
		for sample := range q.Samples {
			n := 1 + (int(q.Group)+sample)%p.MaxTokens
			c := sampler.Completion{Prompt: i, Sample: sample, Finish: sampler.FinishLength, Version: p.Version}
			for at := range n {
				c.IDs = append(c.IDs, int32((int(q.Group)+at)%7))
				c.LogProbs = append(c.LogProbs, -y.weight/float32(at+3))
			}
			if n < p.MaxTokens {
				c.IDs[n-1], c.Finish = q.Ends[0], sampler.FinishStop
				c.LogProbs[n-1] = float32(math.Log(0.1))
			}
			if err := done(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// write writes weights as a version.
func write(t *testing.T, e *server.Exports, version int64, weight float32) string {
	t.Helper()
	dir, err := e.Write(t.Context(), version, func(dir string, o hf.WriteOptions) error {
		bits := []uint16{tensor.BF16FromF32(weight), 7, 8, 9}
		name := "model.embed_tokens.weight"
		return hf.WriteModel(dir, hf.Model{Config: []byte(`{}`),
			Tensors: []hf.TensorSpec{{Name: name, DType: tensor.BF16, Shape: tensor.Shape{2, 2}}},
			Data: func(yield func(hf.Piece, error) bool) {
				yield(hf.Piece{Name: name, Bytes: hf.BytesOf(bits)}, nil)
			}}, o)
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// What comes through a server is what its sampler has made, with the version of its weights; weights that a server does
// not take are found.
func TestServer(t *testing.T) {
	prompts := []sampler.Prompt{{Group: 3, IDs: []int32{1}, Samples: 6, Ends: []int32{8}},
		{Group: 4, IDs: []int32{2, 3}, Samples: 3, Ends: []int32{9, 8}}}
	p := sampler.Params{MaxTokens: 5, Temperature: 1}
	all := func(s sampler.Sampler) (made []sampler.Completion) {
		t.Helper()
		err := s.Sample(t.Context(), prompts, p, func(c sampler.Completion) error {
			made = append(made, c)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		slices.SortFunc(made, func(a, b sampler.Completion) int { return 100*(a.Prompt-b.Prompt) + a.Sample - b.Sample })
		return made
	}
	for _, engine := range []string{server.SGLang, server.VLLM} {
		for _, leavesOut := range []bool{false, true} {
			plays := New(t, Options{Open: openToy, ModelType: "toy", Vocab: 10, Positions: 40, LeavesOut: leavesOut})
			var handed []server.Handover
			s, err := server.Open(t.Context(), server.Options{Engine: engine, URL: plays.URL, Vocab: 10, ModelType: "toy",
				Loaded: func(h server.Handover) { handed = append(handed, h) }})
			if err != nil {
				t.Fatal(err)
			}
			e, err := server.OpenExports(vfs.OS{}, filepath.Join(t.TempDir(), "policy"))
			if err != nil {
				t.Fatal(err)
			}
			for version, weight := range []float32{1, 2} {
				if err := s.Load(t.Context(), write(t, e, int64(version), weight), int64(version)); err != nil {
					t.Fatal(err)
				}
				p.Version = int64(version)
				got, want := all(s), all(&toy{weight})
				for i := range got {
					last := len(got[i].LogProbs) - 1
					if leavesOut && want[i].Finish == sampler.FinishStop {
						if last >= 0 && !math.IsNaN(float64(got[i].LogProbs[last])) {
							t.Errorf("the log-probability of an end that was left out is %v", got[i].LogProbs[last])
						}
						got[i].LogProbs, want[i].LogProbs = got[i].LogProbs[:max(last, 0)], want[i].LogProbs[:max(last, 0)]
					}
					if len(got[i].LogProbs)+len(want[i].LogProbs) == 0 {
						got[i].LogProbs, want[i].LogProbs = nil, nil
					}
				}
				if !reflect.DeepEqual(got, want) {
					t.Errorf("%s, version %d:\n%v\n%v", engine, version, got, want)
				}
				if h := handed[version]; h.Version != int64(version) || engine == server.VLLM && h.Tensors != 1 ||
					engine == server.SGLang && h.Moved != version {
					t.Errorf("%s, version %d: %+v", engine, version, h)
				}
			}
			plays.Stale = true
			err = s.Load(t.Context(), write(t, e, 2, 3), 2)
			if err == nil || !strings.Contains(err.Error(), "the server still has old weights") {
				t.Errorf("%s with old weights: %v", engine, err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}
