package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/millrace/millrace/train/rl/sampler"
)

// What Open refuses, in one line.
func TestOpenRefuses(t *testing.T) {
	t.Setenv("MILLRACE_TEST_EMPTY", "")
	for want, change := range map[string]func(o *Options){
		`engine is "slang"`:                   func(o *Options) { o.Engine = "slang" },
		`write the server's address`:          func(o *Options) { o.URL = "127.0.0.1:30000" },
		`without a name, a password`:          func(o *Options) { o.URL = "http://me:secret@host" },
		"environment has no such variable":    func(o *Options) { o.TokenEnv = "MILLRACE_TEST_EMPTY" },
		"a vocabulary of 0":                   func(o *Options) { o.Vocab = 0 },
		"the run trains one of kind llama":    func(o *Options) { o.ModelType = "llama" },
		"GET /v1/models: it answered 404 Not": func(o *Options) { o.Engine = VLLM },
	} {
		r, url := record(t, files[SGLang])
		if strings.Contains(want, "404") {
			r.exchanges = nil
		}
		o := options(SGLang, url)
		change(&o)
		s, err := Open(t.Context(), o)
		if refused(t, err, want); s != nil {
			t.Errorf("%s: there is a client", want)
		}
	}
	_, url := record(t, files[VLLM])
	o := options(VLLM, url)
	o.Vocab = 13
	_, err := Open(t.Context(), o)
	refused(t, err, "has a model of 12 tokens, and that of the run has 13")

	r, url := record(t, files[SGLang])
	r.edit("/model_info", `"is_generation":true`, `"is_generation":false`)
	_, err = Open(t.Context(), options(SGLang, url))
	refused(t, err, "does not write texts")

	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	down := "http://" + l.Addr().String()
	l.Close()
	for engine := range files {
		_, err = Open(t.Context(), options(engine, down))
		refused(t, err, "there is no server")
	}
}

// Connections fail in many ways, and errors tell them apart. Only a request that the server has not begun is repeated.
func TestConnections(t *testing.T) {
	write := func(w http.ResponseWriter, text string) bool {
		_, _ = io.WriteString(w, text) // the client may have gone
		return true
	}
	for name, c := range map[string]struct {
		instead func(w http.ResponseWriter, number int) bool
		want    string // "": no error
		asks    int64
	}{
		"an error of the server": {func(w http.ResponseWriter, _ int) bool {
			w.WriteHeader(500)
			return write(w, `{"error": {"message": "CUDA error:\nan illegal memory access"}}`)
		}, `it answered 500 Internal Server Error: "CUDA error: an illegal memory access"`, 1},
		"a detail": {func(w http.ResponseWriter, _ int) bool {
			w.WriteHeader(422)
			return write(w, `{"detail": "input_ids: Field required"}`)
		}, `it answered 422 Unprocessable Entity: "input_ids: Field required"`, 1},
		"a key": {func(w http.ResponseWriter, _ int) bool {
			w.WriteHeader(401)
			return write(w, `{"error": "Unauthorized"}`)
		}, `it answered 401 Unauthorized: "Unauthorized": set token_env`, 1},
		"garbage": {func(w http.ResponseWriter, _ int) bool {
			return write(w, "<html>\x1b[2J")
		}, "its answer cannot be read", 1},
		"an end in the middle": {func(w http.ResponseWriter, _ int) bool {
			return write(w, `{"output_ids": [4, 5`)
		}, "its answer cannot be read", 1},
		"a dead server": {func(w http.ResponseWriter, _ int) bool {
			w.Header().Set("Content-Length", "1000")
			_ = write(w, `{"output_ids": `)
			w.(http.Flusher).Flush()
			panic(http.ErrAbortHandler)
		}, "the answer ends in its middle", 1},
		"a server that dies at once": {func(http.ResponseWriter, int) bool {
			panic(http.ErrAbortHandler)
		}, "it ended the connection", 1},
		"a redirect": {func(w http.ResponseWriter, _ int) bool {
			w.Header().Set("Location", "http://127.0.0.1:1/generate")
			w.WriteHeader(307)
			return true
		}, "the server redirects", 1},
		"endless": {func(w http.ResponseWriter, _ int) bool {
			for piece := strings.Repeat(" ", 1<<16); ; {
				if _, err := io.WriteString(w, piece); err != nil {
					return true
				}
			}
		}, "which no such answer needs", 1},
		"a full server": {func(w http.ResponseWriter, number int) bool {
			if number < 2 {
				w.WriteHeader(503)
				return true
			}
			return false
		}, "", 3},
		"one that stays full": {func(w http.ResponseWriter, _ int) bool {
			w.WriteHeader(429)
			return true
		}, "it answered 429 Too Many Requests", 3},
	} {
		t.Run(name, func(t *testing.T) {
			r, url := record(t, files[SGLang])
			s := opened(t, options(SGLang, url))
			var asks atomic.Int64 // the server has a goroutine of its own
			r.mu.Lock()
			r.instead = func(w http.ResponseWriter, q *http.Request, path string, number int) bool {
				if path != "/generate" {
					t.Errorf("it was asked for %s", path)
				}
				asks.Store(int64(number + 1))
				return c.instead(w, number)
			}
			r.mu.Unlock()
			all, err := sampled(t.Context(), s, asked[1:], usual)
			if c.want == "" && (err != nil || len(all) != 1) || c.want != "" && len(all) > 0 {
				t.Errorf("answers %v, error %v", all, err)
			}
			if c.want != "" {
				refused(t, err, c.want)
			}
			if n := asks.Load(); n != c.asks {
				t.Errorf("the server was asked %d times, want %d", n, c.asks)
			}
		})
	}
}

// A server that never answers is given up after its time, and at once when the context ends.
func TestServerThatNeverAnswers(t *testing.T) {
	r, url := record(t, files[VLLM])
	o := options(VLLM, url)
	o.Limits.Answer = time.Millisecond
	s := opened(t, o)
	ctx, cancel := context.WithCancel(t.Context())
	came := make(chan struct{}, 16)
	r.mu.Lock()
	r.instead = func(_ http.ResponseWriter, q *http.Request, _ string, _ int) bool {
		came <- struct{}{}
		<-q.Context().Done()
		return true
	}
	r.mu.Unlock()
	_, err := sampled(ctx, s, asked[:1], usual)
	refused(t, err, "it has not answered in 1ms")

	s.(*server).conn.limits.Answer = time.Hour
	for len(came) > 0 {
		<-came
	}
	ended := make(chan error, 1)
	go func() {
		_, err := sampled(ctx, s, asked[:1], usual)
		ended <- err
	}()
	<-came
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

// No more answers are under way than are allowed, the first answers to all prompts come first, and an error of done
// ends it all.
func TestAtOnce(t *testing.T) {
	var now, most atomic.Int32
	var mu sync.Mutex
	var order []string
	r, url := record(t, files[SGLang])
	o := options(SGLang, url)
	s := opened(t, o)
	r.mu.Lock()
	r.instead = func(http.ResponseWriter, *http.Request, string, int) bool {
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer now.Add(-1)
		return false
	}
	r.mu.Unlock()
	prompts := []sampler.Prompt{asked[0], asked[1]}
	prompts[0].Samples, prompts[1].Samples = 20, 20
	all, err := sampled(t.Context(), s, prompts, usual)
	if err != nil || len(all) != 40 || most.Load() > 4 {
		t.Errorf("%d answers, %d at once, error %v", len(all), most.Load(), err)
	}
	for i, c := range all {
		if want := (sampler.Completion{Prompt: i / 20, Sample: i % 20}); c.Prompt != want.Prompt || c.Sample != want.Sample {
			t.Fatalf("answer %d is %d of prompt %d", i, c.Sample, c.Prompt)
		}
	}

	o.AtOnce = 1
	alone := opened(t, o)
	stop := errors.New("enough")
	err = alone.Sample(t.Context(), prompts, usual, func(c sampler.Completion) error {
		mu.Lock()
		defer mu.Unlock()
		if order = append(order, fmt.Sprint(c.Prompt, c.Sample)); len(order) == 5 {
			return stop
		}
		return nil
	})
	if got := strings.Join(order, " "); !errors.Is(err, stop) || got != "0 0 1 0 0 1 1 1 0 2" {
		t.Errorf("error %v after %s", err, got)
	}
}

// What Sample refuses before it asks.
func TestSampleRefuses(t *testing.T) {
	r, url := record(t, files[VLLM])
	var warned []string
	o := options(VLLM, url)
	o.Warn = func(format string, args ...any) { warned = append(warned, fmt.Sprintf(format, args...)) }
	fresh, err := Open(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	_, err = sampled(t.Context(), fresh, asked, usual)
	refused(t, err, "has no weights of this run")

	s := opened(t, o)
	before := len(r.paths)
	for want, change := range map[string]func(q *sampler.Prompt, p *sampler.Params){
		"prompt 0 has 0 tokens":              func(q *sampler.Prompt, _ *sampler.Params) { q.IDs = nil },
		"has token 10, and the vocabulary":   func(q *sampler.Prompt, _ *sampler.Params) { q.IDs = []int32{10} },
		"has token -1, and the vocabulary":   func(q *sampler.Prompt, _ *sampler.Params) { q.Ends = []int32{-1} },
		"has 64 positions: start the server": func(_ *sampler.Prompt, p *sampler.Params) { p.MaxTokens = 62 },
		"prompt and answer 1 positions": func(q *sampler.Prompt, p *sampler.Params) {
			q.IDs, p.Positions = q.IDs[:1:1], 1
		},
		"answers of 0 tokens":                  func(_ *sampler.Prompt, p *sampler.Params) { p.MaxTokens = 0 },
		"at temperature 0 with":                func(_ *sampler.Prompt, p *sampler.Params) { p.Temperature = 0 },
		"and top_p 1.5 cannot be sampled":      func(_ *sampler.Prompt, p *sampler.Params) { p.TopP = 1.5 },
		"at temperature NaN with top_k 0 and ": func(_ *sampler.Prompt, p *sampler.Params) { p.Temperature = math.NaN() },
	} {
		q, p := asked[0], usual
		change(&q, &p)
		_, err := sampled(t.Context(), s, []sampler.Prompt{q}, p)
		refused(t, err, want)
	}

	// A long prompt leaves less room for its answer, and is no reason to refuse it.
	long := usual
	long.MaxTokens, long.Positions = 62, 60
	if _, err := s.(*server).plan(asked, &long); err != nil || long.Most(asked[0]) != 60-len(asked[0].IDs) {
		t.Errorf("%d tokens at most: %v", long.Most(asked[0]), err)
	}

	// Log-probabilities of another temperature than that of the answers are no such thing.
	p := usual
	p.Temperature = 0.5
	s.(*server).is.logProbs = "raw_logprobs"
	_, err = sampled(t.Context(), s, asked, p)
	refused(t, err, "start it with --logprobs-mode processed_logprobs")
	if len(r.paths) != before || len(warned) > 0 {
		t.Errorf("it was asked for %q and has warned %q", r.paths[before:], warned)
	}
	s.(*server).is.logProbs = ""
	_, err = s.(*server).plan(asked, &p)
	if err != nil || len(warned) != 1 || !strings.Contains(warned[0], "processed_logprobs") {
		t.Errorf("error %v, warnings %q", err, warned)
	}
	if _, err := s.(*server).plan(asked, &p); err != nil || len(warned) != 1 {
		t.Errorf("error %v, warnings %q", err, warned)
	}
}

// Answers end by tokens in more than one way.
func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		engine   string
		edits    [][2]string
		ids      []int32
		finish   string
		unknown  int // log-probabilities, from the last one on
		isWarned bool
	}{
		"output_ids without the end": {SGLang, [][2]string{{`"output_ids":[4,5,9]`, `"output_ids":[4,5]`}},
			[]int32{4, 5, 9}, "stop", 0, false},
		"neither list has the end": {SGLang, [][2]string{{`"output_ids":[4,5,9]`, `"output_ids":[4,5]`},
			{",[-0.125,9,null]", ""}}, []int32{4, 5, 9}, "stop", 1, false},
		"several tokens match": {SGLang, [][2]string{{`"matched":9`, `"matched":[5,9]`}}, []int32{4, 5, 9}, "stop", 0, false},
		"an end at the last place": {SGLang, [][2]string{{`{"type":"stop","matched":9}`, `{"type":"length","length":3}`}},
			[]int32{4, 5, 9}, "stop", 0, false},
		"an end of the server's own": {SGLang, [][2]string{{`"output_ids":[4,5,9]`, `"output_ids":[4,5,8]`},
			{"[-0.125,9,null]", "[-0.125,8,null]"}, {`"matched":9`, `"matched":8`}}, []int32{4, 5, 8}, "length", 0, true},
		"a text that ends": {SGLang, [][2]string{{`"output_ids":[4,5,9]`, `"output_ids":[4,5,8]`},
			{"[-0.125,9,null]", "[-0.125,8,null]"}, {`"matched":9`, `"matched":"."`}}, []int32{4, 5, 8}, "length", 0, true},
		"vLLM without the end": {VLLM, [][2]string{{`"token_ids":[4,5,9]`, `"token_ids":[4,5]`},
			{`"token_logprobs":[-0.5,-1.25,-0.125]`, `"token_logprobs":[-0.5,-1.25]`}}, []int32{4, 5, 9}, "stop", 1, false},
		"nothing but the end": {VLLM, [][2]string{{`"token_ids":[4,5,9]`, `"token_ids":[]`},
			{`"token_logprobs":[-0.5,-1.25,-0.125]`, `"token_logprobs":[]`}}, []int32{9}, "stop", 3, false},
		"numbers that are not known": {VLLM, [][2]string{{"[-0.5,-1.25,-0.125]", "[-0.5,null,-9999.0]"}}, []int32{4, 5, 9},
			"stop", 2, false},
	} {
		t.Run(name, func(t *testing.T) {
			r, url := record(t, files[c.engine])
			o := options(c.engine, url)
			isWarned := false
			o.Warn = func(string, ...any) { isWarned = true }
			s := opened(t, o)
			for _, e := range c.edits {
				r.edit(answers[c.engine], e[0], e[1])
			}
			one := []sampler.Prompt{{Group: 5, IDs: asked[0].IDs, Samples: 1, Ends: asked[0].Ends}}
			all, err := sampled(t.Context(), s, one, usual)
			if err != nil {
				t.Fatal(err)
			}
			got := all[0]
			if fmt.Sprint(got.IDs) != fmt.Sprint(c.ids) || got.Finish != c.finish || isWarned != c.isWarned {
				t.Errorf("%v, warned %v", got, isWarned)
			}
			if c.unknown == 3 && got.LogProbs != nil {
				t.Errorf("log-probabilities %v, and none is known", got.LogProbs)
			}
			for i, lp := range got.LogProbs {
				if math.IsNaN(float64(lp)) != (i >= len(c.ids)-c.unknown) {
					t.Errorf("log-probabilities %v, and %d are not known", got.LogProbs, c.unknown)
				}
			}
		})
	}
}

// SGLang's log-probabilities are those of all tokens, which is not what top_p draws from.
func TestTruncatedDistributions(t *testing.T) {
	p := usual
	p.TopP = 0.5
	for engine, isKnown := range map[string]bool{SGLang: false, VLLM: true} {
		r, url := record(t, files[engine])
		o := options(engine, url)
		warned := 0
		o.Warn = func(string, ...any) { warned++ }
		s := opened(t, o)
		for i := range r.exchanges {
			body, _ := r.exchanges[i].Body.(map[string]any)
			if params, ok := body["sampling_params"].(map[string]any); ok {
				params["top_p"] = 0.5
			} else if _, ok := body["top_p"]; ok {
				body["top_p"] = 0.5
			}
		}
		all, err := sampled(t.Context(), s, asked, p)
		if err != nil || len(all) != 3 {
			t.Fatal(all, err)
		}
		for _, c := range all {
			if (c.LogProbs != nil) != isKnown {
				t.Errorf("%s: log-probabilities %v", engine, c.LogProbs)
			}
		}
		if (warned == 0) != isKnown {
			t.Errorf("%s: %d warnings", engine, warned)
		}
	}
}

// A server that is asked through an address with a path, and has no trailing slash twice.
func TestAddressWithPath(t *testing.T) {
	r, _ := record(t, files[SGLang])
	h := httptest.NewServer(http.StripPrefix("/sampler/1", r))
	defer h.Close()
	if _, err := Open(t.Context(), options(SGLang, h.URL+"/sampler/1/")); err != nil {
		t.Error(err)
	}
}

// Requests have names, from which a server of tests knows which answer is asked for.
func TestRequestID(t *testing.T) {
	group, sample, ok := ParseRequestID(RequestID("3f", 1<<40, 7))
	if group != 1<<40 || sample != 7 || !ok {
		t.Errorf("%d %d %v", group, sample, ok)
	}
	for _, bad := range []string{"", "millrace-a-1", "millrace--1-2", "other-a-1-2", "millrace-a-x-2"} {
		if _, _, ok := ParseRequestID(bad); ok {
			t.Errorf("%q is a request's name", bad)
		}
	}
}
