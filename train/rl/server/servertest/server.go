// Package servertest plays SGLang and vLLM for tests: an HTTP server that speaks both protocols, takes weights from
// directories, and has a sampler of the test's choice answer by them.
package servertest

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"

	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/train/rl/sampler"
	"github.com/millrace/millrace/train/rl/server"
)

// Options say what a server is.
type Options struct {
	// Open makes a sampler of the weights of a directory, and close ends it.
	Open      func(dir string) (s sampler.Sampler, close func() error, err error)
	ModelType string
	Vocab     int
	Positions int
	Seed      uint64 // that the sampler is asked with
	LeavesOut bool   // the token that ends an answer is not in its ids
	Stale     bool   // it says that it takes weights, and keeps those that it has
}

// Server is a server that runs.
type Server struct {
	URL string
	Options

	mu       sync.Mutex
	paths    []string
	dir      string
	sampler  sampler.Sampler
	end      func() error
	version  string
	isPaused bool
	isAsleep bool
}

// New starts a server, which ends with the test.
func New(t testing.TB, o Options) *Server {
	s := &Server{Options: o, version: "default"}
	h := httptest.NewServer(s)
	s.URL = h.URL
	t.Cleanup(func() {
		h.Close()
		if s.end != nil {
			if err := s.end(); err != nil {
				t.Error(err)
			}
		}
	})
	return s
}

// Paths are the requests so far, as METHOD PATH.
func (s *Server) Paths() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string(nil), s.paths...)
}

// refused is an error with the status of an answer.
type refused struct {
	status int
	error
}

// ServeHTTP answers a request; one at a time, as the samplers of tests need it.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.paths = append(s.paths, r.Method+" "+r.URL.Path)
	var body map[string]json.RawMessage
	_ = json.NewDecoder(r.Body).Decode(&body) // a GET has none
	answer, err := s.answer(r, body)
	status := http.StatusOK
	if err != nil {
		as := refused{status: http.StatusBadRequest}
		errors.As(err, &as)
		status, answer = as.status, map[string]any{"error": map[string]any{"message": err.Error()}}
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(answer) // the client may have gone
}

func (s *Server) answer(r *http.Request, body map[string]json.RawMessage) (any, error) {
	type object = map[string]any
	switch r.Method + " " + r.URL.Path {
	case "GET /model_info":
		return object{"model_path": s.dir, "is_generation": true, "weight_version": s.version, "model_type": s.ModelType}, nil
	case "GET /v1/models":
		return object{"data": []any{object{"id": "policy", "root": s.dir, "max_model_len": s.Positions}}}, nil
	case "GET /version":
		return object{"version": "test"}, nil
	case "GET /server_info":
		return object{"version": "test", "dtype": "bfloat16", "quantization": nil,
			"vllm_config": object{"model_config": object{"dtype": "torch.bfloat16", "logprobs_mode": "processed_logprobs",
				"hf_config": fmt.Sprintf(`Config {"model_type": %q, "vocab_size": %d}`, s.ModelType, s.Vocab)}}}, nil
	case "POST /pause_generation", "POST /pause":
		s.isPaused = true
		return object{"status": "paused"}, nil
	case "POST /continue_generation", "POST /resume":
		s.isPaused = false
		return object{"status": "resumed"}, nil
	case "POST /update_weights_from_disk":
		err := s.load(text(body["model_path"]))
		if err == nil {
			s.version = text(body["weight_version"])
			return object{"success": true, "message": "Succeeded to update model weights.", "num_paused_requests": 0}, nil
		}
		return nil, err
	case "POST /collective_rpc":
		var kwargs map[string]string
		if text(body["method"]) != "reload_weights" || json.Unmarshal(body["kwargs"], &kwargs) != nil {
			return nil, fmt.Errorf("no such method")
		}
		return object{"results": []any{nil}}, s.load(kwargs["weights_path"])
	case "POST /reset_prefix_cache":
		return object{"success": true}, nil
	case "POST /update_weight_version":
		s.version = text(body["new_version"])
		return object{"success": true}, nil
	case "POST /weight_checker":
		sums, err := s.sums(64, "dp0:pp0:pcp0:tp0:")
		return object{"checksums": sums}, err
	case "POST /weights_checker":
		sums, err := s.sums(16, "")
		return object{"success": true, "message": "", "ranks": []any{object{"checksums": sums,
			"parallelism_info": object{"role": "target"}}}}, err
	case "POST /release_memory_occupation", "POST /sleep", "POST /resume_memory_occupation", "POST /wake_up":
		s.isAsleep = r.URL.Path == "/release_memory_occupation" || r.URL.Path == "/sleep"
		return nil, nil
	case "POST /generate":
		return s.generate(r, body)
	case "POST /v1/completions":
		return s.complete(r, body)
	}
	return nil, refused{http.StatusNotFound, errors.New("there is nothing here")}
}

func text(doc json.RawMessage) (s string) {
	_ = json.Unmarshal(doc, &s)
	return s
}

// load takes the weights of a directory.
func (s *Server) load(dir string) error {
	if !s.isPaused {
		return errors.New("texts are under way")
	}
	if s.Stale && s.sampler != nil {
		return nil
	}
	of, end, err := s.Open(dir)
	if err != nil {
		return err
	}
	if s.end != nil {
		if err := s.end(); err != nil {
			return err
		}
	}
	s.sampler, s.end, s.dir = of, end, dir
	return nil
}

// sums are the first digits of the SHA-256 of each tensor.
func (s *Server) sums(digits int, prefix string) (map[string]string, error) {
	w, err := hf.OpenWeights(s.dir)
	if err != nil {
		return nil, err
	}
	defer w.Close()
	all := map[string]string{}
	for _, name := range w.Names() {
		info, _ := w.Info(name)
		buf := make([]byte, info.Bytes)
		if err := w.ReadAt(name, buf, 0); err != nil {
			return nil, err
		}
		all[prefix+name] = fmt.Sprintf("%x", sha256.Sum256(buf))[:digits]
	}
	return all, nil
}

// sample has the sampler answer a request, and returns the answer without its end if it is to be left out.
func (s *Server) sample(r *http.Request, id string, ids, ends []int32, p sampler.Params) (c sampler.Completion,
	end *int32, err error) {
	group, number, ok := server.ParseRequestID(id)
	switch {
	case s.isPaused || s.isAsleep || s.sampler == nil:
		return c, nil, refused{http.StatusServiceUnavailable, errors.New("paused, asleep, or without weights")}
	case !ok:
		return c, nil, fmt.Errorf("the request has the name %q", id)
	}
	if p.Version, err = strconv.ParseInt(s.version, 10, 64); err != nil {
		return c, nil, err
	}
	if p.Seed = s.Seed; p.Temperature == 0 {
		p.Temperature = 1 // the likeliest tokens are asked for because of their log-probabilities, which others have, too
	}
	prompt := sampler.Prompt{Group: group, IDs: ids, Samples: number + 1, Ends: ends}
	found := false
	err = s.sampler.Sample(r.Context(), []sampler.Prompt{prompt}, p, func(made sampler.Completion) error {
		if made.Sample == number {
			c, found = made, true
		}
		return nil
	})
	if err == nil && !found {
		err = fmt.Errorf("the sampler has not made answer %d", number)
	}
	if err != nil || c.Finish != sampler.FinishStop {
		return c, nil, err
	}
	end = &c.IDs[len(c.IDs)-1]
	if s.LeavesOut {
		c.IDs, c.LogProbs = c.IDs[:len(c.IDs)-1], c.LogProbs[:len(c.LogProbs)-1]
	}
	return c, end, nil
}

// value is a log-probability for JSON.
func value(lp float32) any {
	if math.IsNaN(float64(lp)) {
		return nil
	}
	return float64(lp)
}

func (s *Server) generate(r *http.Request, body map[string]json.RawMessage) (any, error) {
	var ids []int32
	var p struct {
		Most int     `json:"max_new_tokens"`
		Ends []int32 `json:"stop_token_ids"`
		Heat float64 `json:"temperature"`
	}
	if err := json.Unmarshal(body["input_ids"], &ids); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(body["sampling_params"], &p); err != nil {
		return nil, err
	}
	c, end, err := s.sample(r, text(body["rid"]), ids, p.Ends, sampler.Params{MaxTokens: p.Most, Temperature: p.Heat})
	if err != nil {
		return nil, err
	}
	triples := make([]any, len(c.IDs))
	for i, id := range c.IDs {
		triples[i] = []any{value(c.LogProbs[i]), id, nil}
	}
	return map[string]any{"text": "", "output_ids": c.IDs, "meta_info": map[string]any{"prompt_tokens": len(ids),
		"weight_version": s.version, "finish_reason": map[string]any{"type": c.Finish, "matched": end},
		"output_token_logprobs": triples}}, nil
}

func (s *Server) complete(r *http.Request, body map[string]json.RawMessage) (any, error) {
	var ids, ends []int32
	var most int
	var heat float64
	for key, into := range map[string]any{"prompt": &ids, "stop_token_ids": &ends, "max_tokens": &most,
		"temperature": &heat} {
		if err := json.Unmarshal(body[key], into); err != nil {
			return nil, err
		}
	}
	c, end, err := s.sample(r, text(body["request_id"]), ids, ends, sampler.Params{MaxTokens: most, Temperature: heat})
	if err != nil {
		return nil, err
	}
	values := make([]any, len(c.IDs))
	for i, lp := range c.LogProbs {
		values[i] = value(lp)
	}
	type object = map[string]any
	return object{"choices": []any{object{"index": 0, "text": "", "token_ids": c.IDs, "prompt_token_ids": ids,
		"finish_reason": c.Finish, "stop_reason": end, "logprobs": object{"token_logprobs": values},
		"weight_versions": []any{object{"version": s.version, "start": 0, "end": len(c.IDs)}}}}}, nil
}
