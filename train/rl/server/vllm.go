package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/budget"
)

// vllm speaks vLLM's protocol, as vllm/entrypoints/openai/completion/protocol.py,
// vllm/entrypoints/rl/online/api_router.py and vllm/entrypoints/serve/dev of version 0.33.0 have it. Hand-overs need a
// server that was started with VLLM_SERVER_DEV_MODE=1.
type vllm struct {
	*conn
	model string
}

func (v *vllm) get(ctx context.Context, path string, query []string, into any) error {
	return v.ask(ctx, request{method: http.MethodGet, path: path, query: withQuery(query...), limit: v.limits.Question},
		into)
}

func (v *vllm) post(ctx context.Context, path string, query []string, body, into any) error {
	err := v.ask(ctx, request{method: http.MethodPost, path: path, query: withQuery(query...), body: body,
		limit: v.limits.Load}, into)
	if isMissing(err) {
		err = fmt.Errorf("%w: weights can be handed to a server that was started with VLLM_SERVER_DEV_MODE=1", err)
	}
	return err
}

func (v *vllm) describe(ctx context.Context) (d description, err error) {
	if d.model, d.positions, err = v.models(ctx); err != nil {
		return d, err
	}
	v.model = d.model
	var program struct {
		Version string `json:"version"`
	}
	if err := v.get(ctx, "/version", nil, &program); err != nil && !isMissing(err) {
		return d, err
	}
	d.version = program.Version
	var info struct {
		Config struct {
			Model vllmModelConfig `json:"model_config"`
		} `json:"vllm_config"`
	}
	if v.get(ctx, "/server_info", []string{"config_format", "json"}, &info) != nil {
		return d, nil // of development mode, without which load fails; an older one has a text
	}
	m := &info.Config.Model
	d.logProbs, d.dtype = m.LogProbs, strings.TrimPrefix(m.DType, "torch.")
	if m.Quantization != nil {
		d.dtype = *m.Quantization
	}
	d.modelType, d.vocab = m.of()
	return d, nil
}

// vllmModelConfig has fields of ModelConfig in vllm/config/model.py.
type vllmModelConfig struct {
	DType        string          `json:"dtype"`
	Quantization *string         `json:"quantization"`
	LogProbs     string          `json:"logprobs_mode"`
	HF           json.RawMessage `json:"hf_config"` // the model's config.json: an object, or the text of one
}

var (
	vllmModelType = regexp.MustCompile(`"model_type": ?"([^"]+)"`)
	vllmVocab     = regexp.MustCompile(`"vocab_size": ?([0-9]{1,9})`)
)

// of finds the kind of the model and its vocabulary, where they are told once. "" and 0 are not known.
func (m *vllmModelConfig) of() (modelType string, vocab int) {
	text := string(m.HF)
	_ = budget.Unmarshal(m.HF, &text)
	if found := vllmModelType.FindAllStringSubmatch(text, 2); len(found) == 1 {
		modelType = found[0][1]
	}
	if found := vllmVocab.FindAllStringSubmatch(text, 2); len(found) == 1 {
		vocab, _ = strconv.Atoi(found[0][1])
	}
	return modelType, vocab
}

// vllmRequest is a request of /v1/completions. All that shapes the distribution is sent: the server may have other
// defaults, from generation_config.json of its model. It ends at stop_token_ids alone.
type vllmRequest struct {
	Model             string  `json:"model"`
	Prompt            []int32 `json:"prompt"`
	MaxTokens         int     `json:"max_tokens"`
	N                 int     `json:"n"`
	LogProbs          int     `json:"logprobs"` // 0: of the chosen token alone
	Temperature       float64 `json:"temperature"`
	TopP              float64 `json:"top_p"`
	TopK              int     `json:"top_k"` // 0: all
	MinP              float64 `json:"min_p"`
	FrequencyPenalty  float64 `json:"frequency_penalty"`
	PresencePenalty   float64 `json:"presence_penalty"`
	RepetitionPenalty float64 `json:"repetition_penalty"`
	MinTokens         int     `json:"min_tokens"`
	StopTokenIDs      []int32 `json:"stop_token_ids"`
	IgnoreEOS         bool    `json:"ignore_eos"`
	SkipSpecialTokens bool    `json:"skip_special_tokens"`
	ReturnTokenIDs    bool    `json:"return_token_ids"`
	TokensAsIDs       bool    `json:"return_tokens_as_token_ids"`
	ReturnVersions    bool    `json:"return_weight_versions"` // older servers ignore it
	RequestID         string  `json:"request_id"`
	Stream            bool    `json:"stream"`
}

// vllmAnswer is the answer of /v1/completions.
type vllmAnswer struct {
	Choices []struct {
		TokenIDs       []int32         `json:"token_ids"`
		PromptTokenIDs []int32         `json:"prompt_token_ids"`
		Finish         *string         `json:"finish_reason"`
		StopReason     json.RawMessage `json:"stop_reason"` // a token's id, a text, or null
		LogProbs       struct {
			Values []*float64 `json:"token_logprobs"`
		} `json:"logprobs"`
		Versions []struct {
			Version string `json:"version"`
		} `json:"weight_versions"`
	}
}

func (v *vllm) answer(ctx context.Context, q question) (r reply, err error) {
	ask := vllmRequest{Model: v.model, Prompt: q.prompt, MaxTokens: q.most, N: 1, Temperature: q.heat, TopP: q.topP,
		TopK: q.topK, RepetitionPenalty: 1, StopTokenIDs: q.ends, IgnoreEOS: true, ReturnTokenIDs: true, TokensAsIDs: true,
		ReturnVersions: true, RequestID: q.id}
	if q.greedy {
		ask.Temperature, ask.TopP, ask.TopK = 0, 1, 0
	}
	if ask.StopTokenIDs == nil {
		ask.StopTokenIDs = []int32{}
	}
	var a vllmAnswer
	err = v.ask(ctx, request{method: http.MethodPost, path: "/v1/completions", body: ask, limit: v.limits.Answer,
		mostBytes: q.mostBytes()}, &a)
	if err != nil {
		return r, err
	}
	if len(a.Choices) != 1 || a.Choices[0].Finish == nil {
		return r, fmt.Errorf("an answer has %d choices, or does not say why it ended", len(a.Choices))
	}
	c := &a.Choices[0]
	if c.TokenIDs == nil || c.PromptTokenIDs == nil {
		return r, errors.New("an answer has no token_ids: the server does not know return_token_ids, use a newer one")
	}
	r = reply{ids: c.TokenIDs, logProbs: known(c.LogProbs.Values), finish: *c.Finish, end: noToken,
		prompt: c.PromptTokenIDs, read: len(c.PromptTokenIDs)}
	_ = budget.Unmarshal(c.StopReason, &r.end) // a text is no token
	for i, span := range c.Versions {
		if i > 0 && span.Version != r.version {
			return r, fmt.Errorf("an answer has tokens of the weights %s and of %s", r.version, span.Version)
		}
		r.version = span.Version
	}
	return r, nil
}

const vllmProcessed = "processed_logprobs"

// Its log-probabilities are of logits as the model has them, unless it was started with --logprobs-mode
// processed_logprobs (vllm/config/model.py).
func (v *vllm) hasTruncated(d *description) bool { return d.logProbs == vllmProcessed }
func (v *vllm) scales(d *description) bool       { return d.logProbs == vllmProcessed }

func (v *vllm) pause(ctx context.Context) error {
	return v.post(ctx, "/pause", []string{"mode", "abort"}, nil, nil)
}

func (v *vllm) resume(ctx context.Context) error {
	return v.post(ctx, "/resume", nil, nil, nil)
}

func (v *vllm) load(ctx context.Context, dir, version string) error {
	err := v.post(ctx, "/collective_rpc", nil, map[string]any{"method": "reload_weights",
		"kwargs": map[string]string{"weights_path": dir}, "timeout": v.limits.Load.Seconds()}, nil)
	if err != nil {
		return err
	}
	// The caches are of the old weights. An older server answers nothing.
	var doc []byte
	if err := v.post(ctx, "/reset_prefix_cache", nil, nil, &doc); err != nil {
		return err
	}
	var done struct {
		Success *bool `json:"success"`
	}
	if budget.Unmarshal(doc, &done) == nil && done.Success != nil && !*done.Success {
		return fmt.Errorf("%s keeps what it has cached of the old weights, since a text holds it: is another program using "+
			"the server?", v.name)
	}
	err = v.ask(ctx, request{method: http.MethodPost, path: "/update_weight_version", limit: v.limits.Question,
		body: map[string]string{"new_version": version}}, nil)
	if isMissing(err) {
		err = nil // an older server, whose answers have no version
	}
	return err
}

// Level 1 keeps the weights in host memory. Level 2 drops them, and a server that was woken from that has answered
// garbage without a word, also after a reload (vllm-project/vllm issues 54235 and 32718).
func (v *vllm) sleep(ctx context.Context) error {
	return v.needsSleep(v.post(ctx, "/sleep", []string{"level", "1"}, nil, nil))
}

func (v *vllm) wake(ctx context.Context) error {
	return v.needsSleep(v.post(ctx, "/wake_up", nil, nil, nil))
}

func (v *vllm) needsSleep(err error) error {
	if r := (*refusal)(nil); errors.As(err, &r) {
		err = fmt.Errorf("%w: a server that shares the run's device is started with --enable-sleep-mode", err)
	}
	return err
}

// digests are SHA-256 of the tensors as the server has them, in hexadecimal, by the names of the first rank's. Those
// that the server has as the files have them, such as down_proj, have the names and the bytes of the files.
func (v *vllm) digests(ctx context.Context) (map[string]string, error) {
	var said struct {
		Checksums map[string]string `json:"checksums"`
	}
	err := v.post(ctx, "/weight_checker", nil, map[string]string{"action": "checksum"}, &said)
	if r := (*refusal)(nil); errors.As(err, &r) {
		return nil, errUnknown // an older server
	}
	all := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(said.Checksums)) { // dp0:pp0:pcp0:tp0:model.norm.weight
		name := key[strings.LastIndexByte(key, ':')+1:]
		all[name] = strings.TrimSpace(all[name] + " " + said.Checksums[key])
	}
	if err == nil && len(all) == 0 {
		err = errUnknown
	}
	return all, err
}

// row is not known: vLLM shows no numbers.
func (v *vllm) row(context.Context, string) ([]float32, error) { return nil, errUnknown }
