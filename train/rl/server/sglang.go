package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/millrace/millrace/internal/budget"
)

// sglang speaks the native protocol of SGLang, as python/sglang/srt/entrypoints/http_server.py and
// managers/io_struct.py of version 0.5.23 have it.
type sglang struct{ *conn }

func (s *sglang) get(ctx context.Context, path string, into any) error {
	return s.ask(ctx, request{method: http.MethodGet, path: path, limit: s.limits.Question}, into)
}

func (s *sglang) post(ctx context.Context, path string, body, into any) error {
	return s.ask(ctx, request{method: http.MethodPost, path: path, body: body, limit: s.limits.Load}, into)
}

func (s *sglang) describe(ctx context.Context) (d description, err error) {
	var model struct {
		ModelType    *string `json:"model_type"`
		IsGeneration *bool   `json:"is_generation"`
	}
	err = s.get(ctx, "/model_info", &model)
	if isMissing(err) {
		err = s.get(ctx, "/get_model_info", &model) // an older server
	}
	if err != nil {
		return d, err
	}
	if model.IsGeneration == nil {
		return d, fmt.Errorf("%s: its answer to GET /model_info is not that of SGLang: correct engine or url", s.name)
	}
	if !*model.IsGeneration {
		return d, fmt.Errorf("%s has a model that does not write texts: start it with the run's model", s.name)
	}
	if model.ModelType != nil {
		d.modelType = *model.ModelType
	}
	if d.model, d.positions, err = s.models(ctx); err != nil {
		return d, err
	}
	var args struct {
		Version      string  `json:"version"`
		DType        string  `json:"dtype"`
		Quantization *string `json:"quantization"`
	}
	err = s.get(ctx, "/server_info", &args)
	if isMissing(err) {
		err = s.get(ctx, "/get_server_info", &args)
	}
	d.version, d.dtype = args.Version, args.DType
	if args.Quantization != nil {
		d.dtype = *args.Quantization
	}
	return d, err
}

// models is the name of the server's model, and the positions that it has. Both servers have this list of OpenAI's.
func (c *conn) models(ctx context.Context) (name string, positions int, err error) {
	var list struct {
		Data []struct {
			ID       string `json:"id"`
			Parent   *string
			MaxModel *int `json:"max_model_len"`
		}
	}
	err = c.ask(ctx, request{method: http.MethodGet, path: "/v1/models", limit: c.limits.Question}, &list)
	if err != nil {
		return "", 0, err
	}
	for _, m := range list.Data {
		if m.Parent == nil { // it is no adapter
			if m.MaxModel != nil {
				positions = *m.MaxModel
			}
			return m.ID, positions, nil
		}
	}
	return "", 0, fmt.Errorf("%s: GET /v1/models names no model: correct engine or url", c.name)
}

// sglangParams are sampling_params of /generate. All are sent: the server may have other defaults, from
// --preferred-sampling-params. With ignore_eos it would end at no token at all, so that it also ends at those of its
// tokenizer.
type sglangParams struct {
	MaxNewTokens      int     `json:"max_new_tokens"`
	StopTokenIDs      []int32 `json:"stop_token_ids,omitempty"`
	Temperature       float64 `json:"temperature"`
	TopP              float64 `json:"top_p"`
	TopK              int     `json:"top_k"` // -1: all
	MinP              float64 `json:"min_p"`
	FrequencyPenalty  float64 `json:"frequency_penalty"`
	PresencePenalty   float64 `json:"presence_penalty"`
	RepetitionPenalty float64 `json:"repetition_penalty"`
	MinNewTokens      int     `json:"min_new_tokens"`
	IgnoreEOS         bool    `json:"ignore_eos"`
	SkipSpecialTokens bool    `json:"skip_special_tokens"`
	NoStopTrim        bool    `json:"no_stop_trim"`
	// Read with --enable-deterministic-inference alone.
	SamplingSeed int64 `json:"sampling_seed"`
}

type sglangRequest struct {
	RID            string       `json:"rid"`
	InputIDs       []int32      `json:"input_ids"`
	SamplingParams sglangParams `json:"sampling_params"`
	ReturnLogProb  bool         `json:"return_logprob"`
	Stream         bool         `json:"stream"`
}

// sglangAnswer is the answer of /generate.
type sglangAnswer struct {
	OutputIDs []int32 `json:"output_ids"`
	Meta      struct {
		PromptTokens int    `json:"prompt_tokens"`
		Version      string `json:"weight_version"`
		Finish       struct {
			Type    string          `json:"type"`
			Matched json.RawMessage `json:"matched"` // a token's id, a text, or several ids
			Message string          `json:"message"`
		} `json:"finish_reason"`
		LogProbs []sglangLogProb `json:"output_token_logprobs"`
	} `json:"meta_info"`
}

// sglangLogProb is one of output_token_logprobs: [log-probability, id, text or null].
type sglangLogProb struct {
	value *float64
	id    int32
}

func (l *sglangLogProb) UnmarshalJSON(doc []byte) error {
	var parts []json.RawMessage
	if err := budget.Unmarshal(doc, &parts); err != nil || len(parts) < 2 {
		return errors.New("output_token_logprobs has no lists of a log-probability, an id and a text")
	}
	return errors.Join(budget.Unmarshal(parts[0], &l.value), budget.Unmarshal(parts[1], &l.id))
}

func (s *sglang) answer(ctx context.Context, q question) (r reply, err error) {
	ask := sglangRequest{RID: q.id, InputIDs: q.prompt, ReturnLogProb: true, SamplingParams: sglangParams{
		MaxNewTokens: q.most, StopTokenIDs: q.ends, Temperature: q.heat, TopP: q.topP, TopK: q.topK, RepetitionPenalty: 1,
		NoStopTrim: true, SamplingSeed: q.seed}}
	if p := &ask.SamplingParams; q.greedy {
		p.Temperature, p.TopP, p.TopK = 0, 1, -1
	} else if q.topK == 0 {
		p.TopK = -1
	}
	var a sglangAnswer
	err = s.ask(ctx, request{method: http.MethodPost, path: "/generate", body: ask, limit: s.limits.Answer,
		mostBytes: q.mostBytes()}, &a)
	if err != nil {
		return r, err
	}
	r = reply{finish: a.Meta.Finish.Type, end: noToken, read: a.Meta.PromptTokens, version: a.Meta.Version}
	if r.finish == "abort" {
		return r, fmt.Errorf("the server broke an answer off: %s", a.Meta.Finish.Message)
	}
	_ = budget.Unmarshal(a.Meta.Finish.Matched, &r.end) // a text is no token
	values := make([]*float64, len(a.Meta.LogProbs))
	for i, lp := range a.Meta.LogProbs {
		r.ids, values[i] = append(r.ids, lp.id), lp.value
	}
	r.logProbs = known(values)
	return r, sglangAgree(r.ids, a.OutputIDs)
}

// sglangAgree compares the two lists of an answer's tokens. output_ids may lack the token that ended it.
func sglangAgree(ids, output []int32) error {
	if n := len(ids); output != nil && n != len(output) && n != len(output)+1 {
		return fmt.Errorf("an answer has %d tokens in output_ids and %d in output_token_logprobs", len(output), n)
	}
	for i, id := range output {
		if id != ids[i] {
			return fmt.Errorf("token %d of an answer is %d in output_ids and %d in output_token_logprobs", i, id, ids[i])
		}
	}
	return nil
}

// Its log-probabilities are of logits over the temperature, unless SGLANG_RETURN_ORIGINAL_LOGPROB is set, and before
// top_p and top_k (layers/sampler.py).
func (s *sglang) hasTruncated(*description) bool { return false }
func (s *sglang) scales(*description) bool       { return true }

// sglangDone has what SGLang says of an order.
type sglangDone struct {
	Success *bool  `json:"success"`
	Message string `json:"message"`
}

func (s *sglang) pause(ctx context.Context) error {
	return s.post(ctx, "/pause_generation", map[string]string{"mode": "abort"}, nil)
}

func (s *sglang) resume(ctx context.Context) error {
	return s.post(ctx, "/continue_generation", struct{}{}, nil)
}

func (s *sglang) load(ctx context.Context, dir, version string) error {
	var done sglangDone
	// load_format is that of files: a server that was started with dummy weights would take such again.
	err := s.post(ctx, "/update_weights_from_disk", map[string]any{"model_path": dir, "load_format": "auto",
		"flush_cache": true, "weight_version": version}, &done)
	if err == nil && (done.Success == nil || !*done.Success) {
		err = fmt.Errorf("%s did not take the weights of %s: %s", s.name, dir, beginning([]byte(done.Message)))
	}
	return err
}

// sglangMemory are the regions of the device that a server gives back: what it keeps of texts, and weights.
var sglangMemory = map[string][]string{"tags": {"kv_cache", "weights"}}

func (s *sglang) sleep(ctx context.Context) error {
	return s.needsSaver(s.post(ctx, "/release_memory_occupation", sglangMemory, nil))
}

func (s *sglang) wake(ctx context.Context) error {
	return s.needsSaver(s.post(ctx, "/resume_memory_occupation", sglangMemory, nil))
}

func (s *sglang) needsSaver(err error) error {
	if r := (*refusal)(nil); errors.As(err, &r) {
		err = fmt.Errorf("%w: a server that shares the run's device is started with --enable-memory-saver", err)
	}
	return err
}

// digests are hashes of the weights as the server has them, of which several may be one tensor there: only a
// comparison with an earlier list means something. Ranks of a tensor's shares have their own.
func (s *sglang) digests(ctx context.Context) (map[string]string, error) {
	var said struct {
		sglangDone
		Ranks []struct {
			Checksums map[string]string `json:"checksums"`
			Of        struct {
				Role string `json:"role"`
			} `json:"parallelism_info"`
		} `json:"ranks"`
	}
	err := s.post(ctx, "/weights_checker", map[string]string{"action": "checksum"}, &said)
	if r := (*refusal)(nil); errors.As(err, &r) {
		return nil, errUnknown // an older server, or weights that cannot be hashed
	}
	all := map[string]string{}
	for i, rank := range said.Ranks {
		if rank.Of.Role != "" && rank.Of.Role != "target" {
			continue
		}
		for name, sum := range rank.Checksums {
			if i > 0 {
				sum = all[name] + " " + sum
			}
			all[name] = strings.TrimSpace(sum)
		}
	}
	if err == nil && len(all) == 0 {
		err = errUnknown
	}
	return all, err
}

// row needs a model whose class in SGLang has get_weights_by_name, such as Llama's, and one rank of data.
func (s *sglang) row(ctx context.Context, name string) ([]float32, error) {
	var doc []byte
	err := s.post(ctx, "/get_weights_by_name", map[string]any{"name": name, "truncate_size": 1}, &doc)
	if r := (*refusal)(nil); errors.As(err, &r) {
		return nil, errUnknown
	}
	if err != nil {
		return nil, err
	}
	var rows [][]float32 // of a matrix
	if budget.Unmarshal(doc, &rows) == nil && len(rows) == 1 {
		return rows[0], nil
	}
	var vector []float32
	if budget.Unmarshal(doc, &vector) == nil && len(vector) > 0 {
		return vector, nil
	}
	return nil, errUnknown // null
}
