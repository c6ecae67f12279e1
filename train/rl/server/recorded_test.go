package server

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/tensor"
	"github.com/millrace/millrace/train/rl/sampler"
	"github.com/millrace/millrace/vfs"
)

// exchange is a request with its answer.
type exchange struct {
	Method string          `json:"method"`
	Path   string          `json:"path"`
	Body   any             `json:"body"`
	Status int             `json:"status"`
	Answer json.RawMessage `json:"answer"`
}

// recording is a server that answers as a file of testdata has it.
type recording struct {
	t         *testing.T
	exchanges []exchange
	// instead answers a request itself, if it returns true. The number is that of requests with this path so far.
	instead func(w http.ResponseWriter, r *http.Request, path string, number int) bool

	mu    sync.Mutex
	paths []string
	heads []http.Header
}

// record starts a server of a file.
func record(t *testing.T, file string) (*recording, string) {
	t.Helper()
	doc, err := os.ReadFile(filepath.Join("testdata", file))
	if err != nil {
		t.Fatal(err)
	}
	var all struct{ Exchanges []exchange }
	if err := json.Unmarshal(doc, &all); err != nil {
		t.Fatal(err)
	}
	r := &recording{t: t, exchanges: all.Exchanges}
	h := httptest.NewServer(r)
	t.Cleanup(h.Close)
	return r, h.URL
}

// edit replaces a text in the answers to a path.
func (r *recording) edit(path, old, text string) {
	r.t.Helper()
	found := false
	for i := range r.exchanges {
		x := &r.exchanges[i]
		if x.Path != path {
			continue
		}
		var flat bytes.Buffer
		if err := json.Compact(&flat, x.Answer); err != nil {
			r.t.Fatal(err)
		}
		if strings.Contains(flat.String(), old) {
			found = true
		}
		x.Answer = json.RawMessage(strings.ReplaceAll(flat.String(), old, text))
	}
	if !found {
		r.t.Fatalf("no answer to %s has %s", path, old)
	}
}

func (r *recording) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	path := q.URL.Path
	if q.URL.RawQuery != "" {
		path += "?" + q.URL.RawQuery
	}
	r.mu.Lock()
	number := 0
	for _, before := range r.paths {
		if before == path {
			number++
		}
	}
	r.paths, r.heads = append(r.paths, path), append(r.heads, q.Header)
	instead := r.instead
	r.mu.Unlock()
	doc, err := io.ReadAll(q.Body)
	if err != nil {
		return
	}
	if instead != nil && instead(w, q, path, number) {
		return
	}
	var body any
	if len(doc) > 0 && json.Unmarshal(doc, &body) != nil {
		r.t.Errorf("%s %s has the body %s", q.Method, path, doc)
	}
	for _, x := range r.exchanges {
		if x.Method == q.Method && x.Path == path && agrees(x.Body, body) {
			w.WriteHeader(x.Status)
			_, _ = w.Write(x.Answer)
			return
		}
	}
	w.WriteHeader(http.StatusNotFound)
	_, _ = io.WriteString(w, `{"detail":"Not Found"}`)
	if path != "/get_model_info" && r.exchanges != nil {
		r.t.Errorf("%s %s with the body %s is not in the file", q.Method, path, doc)
	}
}

// agrees reports whether a request's body is that of a file, where * is any value.
func agrees(want, got any) bool {
	if want == "*" {
		return true
	}
	w, isMap := want.(map[string]any)
	g, isToo := got.(map[string]any)
	if !isMap || !isToo {
		return reflect.DeepEqual(want, got)
	}
	for key := range g {
		if _, ok := w[key]; !ok {
			return false
		}
	}
	for key, value := range w {
		if _, ok := g[key]; !ok || !agrees(value, g[key]) {
			return false
		}
	}
	return true
}

// files has the recording of each kind of server.
var files = map[string]string{SGLang: "sglang-0.5.23.json", VLLM: "vllm-0.33.0.json"}

// answers is the path by which a server answers.
var answers = map[string]string{SGLang: "/generate", VLLM: "/v1/completions"}

// options makes those of a client of a recording. It waits for nothing.
func options(engine, url string) Options {
	return Options{Engine: engine, URL: url, Vocab: 10, ModelType: "qwen3", Sleeps: true, AtOnce: 4,
		Limits: Limits{Waits: []time.Duration{0, 0}}}
}

// exported writes weights as a version.
func exported(t *testing.T, e *Exports, version int64, values ...float32) string {
	t.Helper()
	dir, err := e.Write(t.Context(), version, func(dir string, o hf.WriteOptions) error {
		return writeWeights(dir, o, values...)
	})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// writeWeights writes a directory with one tensor, model.norm.weight.
func writeWeights(dir string, o hf.WriteOptions, values ...float32) error {
	bits := make([]uint16, len(values))
	for i, x := range values {
		bits[i] = tensor.BF16FromF32(x)
	}
	return hf.WriteModel(dir, hf.Model{Config: []byte(`{"model_type": "qwen3"}`),
		Tensors: []hf.TensorSpec{{Name: "model.norm.weight", DType: tensor.BF16, Shape: tensor.Shape{len(values)}}},
		Data: func(yield func(hf.Piece, error) bool) {
			yield(hf.Piece{Name: "model.norm.weight", Bytes: hf.BytesOf(bits)}, nil)
		}}, o)
}

// opened is a client of a recording, which has weights 7.
func opened(t *testing.T, o Options) sampler.Server {
	t.Helper()
	s, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	e, err := OpenExports(vfs.OS{}, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Load(t.Context(), exported(t, e, 7, 1, 2, 3), 7); err != nil {
		t.Fatal(err)
	}
	return s
}

// asked are the prompts of the files.
var asked = []sampler.Prompt{{Group: 5, IDs: []int32{1, 2, 3}, Samples: 2, Ends: []int32{9}},
	{Group: 6, IDs: []int32{6}, Samples: 1, Ends: []int32{9}}}

var usual = sampler.Params{MaxTokens: 4, Temperature: 1, Seed: 1, Version: 7}

// sampled collects answers.
func sampled(ctx context.Context, s sampler.Sampler, prompts []sampler.Prompt, p sampler.Params,
) (all []sampler.Completion, err error) {
	err = s.Sample(ctx, prompts, p, func(c sampler.Completion) error {
		all = append(all, c)
		return nil
	})
	slices.SortFunc(all, func(a, b sampler.Completion) int { return 1000*(a.Prompt-b.Prompt) + a.Sample - b.Sample })
	return all, err
}

// A whole round of each kind of server, by its file.
func TestRecorded(t *testing.T) {
	t.Setenv("MILLRACE_TEST_KEY", "secret")
	for engine, orders := range map[string][]string{
		SGLang: {"/model_info", "/v1/models", "/server_info", "/pause_generation", "/update_weights_from_disk",
			"/continue_generation", "/get_weights_by_name", "/weights_checker", "/generate", "/generate", "/generate",
			"/release_memory_occupation", "/resume_memory_occupation"},
		VLLM: {"/v1/models", "/version", "/server_info?config_format=json", "/pause?mode=abort", "/collective_rpc",
			"/reset_prefix_cache", "/update_weight_version", "/resume", "/weight_checker", "/v1/completions", "/v1/completions",
			"/v1/completions", "/sleep?level=1", "/wake_up"},
	} {
		t.Run(engine, func(t *testing.T) {
			r, url := record(t, files[engine])
			o := options(engine, url)
			o.TokenEnv = "MILLRACE_TEST_KEY"
			var handed []Handover
			o.Loaded = func(h Handover) { handed = append(handed, h) }
			s := opened(t, o)
			names := map[string]string{SGLang: "sglang 0.5.23 bfloat16", VLLM: "vllm 0.33.0 bfloat16"}
			if s.Name() != names[engine] {
				t.Errorf("its name is %s, want %s", s.Name(), names[engine])
			}
			all, err := sampled(t.Context(), s, asked, usual)
			if err != nil {
				t.Fatal(err)
			}
			short := sampler.Completion{IDs: []int32{4, 5, 9}, LogProbs: []float32{-0.5, -1.25, -0.125}, Finish: "stop",
				Version: 7}
			other := short
			other.Sample = 1
			long := sampler.Completion{Prompt: 1, IDs: []int32{4, 4, 8, 7}, LogProbs: []float32{-2, -0.75, -0.25, -3.5},
				Finish: "length", Version: 7}
			if want := []sampler.Completion{short, other, long}; !reflect.DeepEqual(all, want) {
				t.Errorf("answers %v, want %v", all, want)
			}
			if err := s.Sleep(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := sampled(t.Context(), s, asked, usual); err == nil || !strings.Contains(err.Error(), "sleeps") {
				t.Errorf("of a server that sleeps: %v", err)
			}
			if err := s.Wake(t.Context()); err != nil {
				t.Fatal(err)
			}
			if _, err := sampled(t.Context(), s, asked, usual); err == nil || !strings.Contains(err.Error(), "no weights") {
				t.Errorf("of a server that was woken: %v", err)
			}
			if !slices.Equal(r.paths, orders) {
				t.Errorf("it was asked for %q, want %q", r.paths, orders)
			}
			for i, h := range r.heads {
				if h.Get("Authorization") != "Bearer secret" {
					t.Errorf("%s has no key", r.paths[i])
				}
			}
			if len(handed) != 1 || handed[0].Version != 7 || !math.IsNaN(handed[0].Mean) || handed[0].Seconds <= 0 {
				t.Errorf("it tells of %v", handed)
			}
		})
	}
}

// Whatever is wrong with an answer is said in a line that names the server, and no caller sees the answer.
func TestWrongAnswers(t *testing.T) {
	for engine, edits := range map[string]map[string][2]string{
		SGLang: {
			"an answer has token 12, and the vocabulary ends before 10": {"[-0.5,4,null]", "[-0.5,12,null]"},
			"token 0 of an answer is 4 in output_ids and 3":             {"[-0.5,4,null]", "[-0.5,3,null]"},
			"has 3 tokens in output_ids and 1":                          {"[-0.5,4,null],[-1.25,5,null],", ""},
			"the log-probability 17.5: does the server return logits":   {"-0.5,4", "17.5,4"},
			"goes beyond its token 0, which ends it":                    {`"output_ids":[4,5,9]`, `"output_ids":null`},
			"other tokens than the prompt's: 2 of 3":                    {`"prompt_tokens":3`, `"prompt_tokens":2`},
			"broke an answer off: out of memory": {`{"type":"stop","matched":9}`,
				`{"type":"abort","message":"out of memory"}`},
			`ended by "tool", which is neither`:                  {`"type":"stop"`, `"type":"tool"`},
			`of the weights "8", and this run has handed over 7`: {`"weight_version":"7"`, `"weight_version":"8"`},
			`of the weights "mine"`:                              {`"weight_version":"7"`, `"weight_version":"mine"`},
			"has no lists of a log-probability":                  {"[-0.5,4,null]", "[-0.5]"},
			"cannot be read":                                     {`"output_ids":[4,5,9]`, `"output_ids":["a"]`},
		},
		VLLM: {
			"an answer has token 12, and the vocabulary ends before 10": {`"token_ids":[4,5,9]`, `"token_ids":[4,12,9]`},
			"an answer has 2 tokens and 3 log-probabilities":            {`"token_ids":[4,5,9]`, `"token_ids":[4,9]`},
			"an answer has 5 tokens, and 4 were asked for at most":      {`"token_ids":[4,5,9]`, `"token_ids":[4,5,4,5,9]`},
			"an answer has no token_ids":                                {`"token_ids":[4,5,9]`, `"token_ids":null`},
			"other tokens than the prompt's: 3 of 3": {`"prompt_token_ids":[1,2,3]`,
				`"prompt_token_ids":[1,2,4]`},
			"has 2 choices":             {`"choices":[`, `"choices":[{},`},
			`ended by "abort"`:          {`"finish_reason":"stop"`, `"finish_reason":"abort"`},
			"of the weights 7 and of 6": {`"end":3}`, `"end":2},{"version":"6"}`},
		},
	} {
		for want, e := range edits {
			t.Run(engine+" "+want, func(t *testing.T) {
				r, url := record(t, files[engine])
				s := opened(t, options(engine, url))
				r.edit(answers[engine], e[0], e[1])
				switch {
				case engine == SGLang && want == "goes beyond its token 0, which ends it":
					r.edit(answers[engine], "[-0.5,4,null]", "[-0.5,9,null]")
				case strings.HasPrefix(want, "an answer has 5 tokens"):
					r.edit(answers[engine], `"token_logprobs":[-0.5,-1.25,-0.125]`, `"token_logprobs":[-1,-1,-1,-1,-1]`)
				case engine == SGLang && strings.HasPrefix(want, "an answer has token 12"):
					r.edit(answers[engine], "[4,5,9]", "[12,5,9]")
				}
				all, err := sampled(t.Context(), s, asked[:1], usual)
				refused(t, err, want)
				if len(all) > 0 || !strings.Contains(err.Error(), url) {
					t.Errorf("%v, and answers %v", err, all)
				}
			})
		}
	}
}

// refused fails unless an error is one line with a text.
func refused(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
		t.Errorf("error %v, want %q", err, want)
	}
}
