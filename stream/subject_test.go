package stream_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"

	"github.com/millrace/millrace/batch"
	"github.com/millrace/millrace/hf"
	"github.com/millrace/millrace/model"
	"github.com/millrace/millrace/model/modeltest"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/stream"
	"github.com/millrace/millrace/tensor"
	"pgregory.net/rapid"
)

// subject is a model with weights, and the steps that it takes.
type subject struct {
	model    *model.Model
	numerics plan.Numerics
	outputs  plan.Outputs
	cluster  plan.Cluster
	fill     func(*model.Part, model.Values) error
	batches  []*stream.Batch
	updates  []stream.Update
	eval     *stream.Batch
	planned  planned // by newPlan
}

// unclipped are steps of the same subject that do not clip; with inBackward, of a plan that knows.
func (s *subject) unclipped(inBackward bool) *subject {
	c := *s
	c.outputs.NoClip = inBackward
	c.updates = slices.Clone(s.updates)
	for i := range c.updates {
		c.updates[i].MaxGradNorm = 0
	}
	return &c
}

// shape is a random model: its vocabulary has several tiles where it is large compared with a block.
type shape struct {
	Type                               string
	Vocab, Hidden, Inner, Layers       int
	Heads, KVHeads, HeadDim            int
	Tied                               bool
	SequenceLen, MicroBatch, Micro     int
	Cohorts                            int  // of the micro-batches
	Narrow                             bool // sums of cohorts are added in bf16
	HeadChunk, BlockChunk, PieceElems  int
	BF16, Moments8, Unclipped          bool
	Split24                            bool           // of BF16
	Codes                              optim.Moments  // of moments where Moments8 is set; fp32 stands for 8 bits
	Scores                             bool           // a reward model
	Gradients                          bool           // can be read after each step
	Grouped                            bool           // tensors have rates and decays of three groups
	Groups                             int            // of the feed-forwards of a patchwork
	families                           []model.Family // besides those of packages
	FrozenBlocks                       int            // from the first one on
	FrozenEmbed, FrozenHead, FrozenFFN bool           // FrozenFFN: gate, up and down of the last block
}

// hybrid is a family with gated delta nets, and gated attention in every second layer.
const hybrid = "qwen3_5_text"

// latent is a family with latent attention. It has experts in layers after the first few, and here in none.
const latent = "deepseek_v3"

// tiny has six tiles of vocabulary, the last one short, and two micro-batches.
var tiny = shape{Type: "llama", Vocab: 700, Hidden: 16, Inner: 24, Layers: 3, Heads: 2, KVHeads: 1, HeadDim: 8,
	SequenceLen: 11, MicroBatch: 1, Micro: 2, HeadChunk: 4, PieceElems: 300}

// codes are the forms of moments in codes.
var codes = []optim.Moments{optim.Dynamic8, optim.Dynamic8Root4, optim.Power4Root4}

// draw picks any shape. Odd sizes are as likely as round ones.
func draw(rt *rapid.T) shape {
	s := shape{
		Type:   rapid.SampledFrom([]string{"llama", "qwen3", "qwen2", "patchwork", hybrid, latent}).Draw(rt, "type"),
		Vocab:  rapid.IntRange(3, 700).Draw(rt, "vocabulary"),
		Hidden: rapid.IntRange(3, 20).Draw(rt, "hidden"), Inner: rapid.IntRange(1, 30).Draw(rt, "inner"),
		Layers:  rapid.IntRange(1, 4).Draw(rt, "layers"),
		KVHeads: rapid.IntRange(1, 2).Draw(rt, "kv heads"), HeadDim: 2 * rapid.IntRange(1, 4).Draw(rt, "half a head"),
		Tied:        rapid.Bool().Draw(rt, "tied"),
		SequenceLen: rapid.IntRange(1, 13).Draw(rt, "sequence"), MicroBatch: rapid.IntRange(1, 2).Draw(rt, "sequences"),
		Micro: rapid.IntRange(1, 4).Draw(rt, "micro-batches"),
		BF16:  rapid.Bool().Draw(rt, "bf16"), Moments8: rapid.Bool().Draw(rt, "moments in codes"),
		Codes: rapid.SampledFrom(codes).Draw(rt, "codes"), Split24: rapid.Bool().Draw(rt, "master of 24 bits"),
	}
	s.Unclipped, s.Grouped = rapid.Bool().Draw(rt, "not clipped"), rapid.Bool().Draw(rt, "grouped")
	s.Gradients = rapid.IntRange(0, 3).Draw(rt, "gradients are kept") == 0
	s.Heads = s.KVHeads * rapid.IntRange(1, 2).Draw(rt, "group")
	s.HeadChunk = rapid.IntRange(1, s.SequenceLen*s.MicroBatch).Draw(rt, "chunk")
	s.BlockChunk = plan.BlockChunkMultiple * rapid.IntRange(0, 3).Draw(rt, "block chunk")
	s.PieceElems = rapid.IntRange(1, 3000).Draw(rt, "piece")
	s.Groups = rapid.IntRange(0, 3).Draw(rt, "groups")
	if rapid.Bool().Draw(rt, "cohorts") {
		s.Cohorts = []int{1, 2, 3, 2}[s.Micro-1]
		s.Narrow = s.Cohorts > 1 && rapid.Bool().Draw(rt, "sums in bf16")
	}
	return s
}

// config is the shape as the text of a config.json.
func (s shape) config() []byte {
	c := map[string]any{"model_type": s.Type, "vocab_size": s.Vocab, "hidden_size": s.Hidden, "intermediate_size": s.Inner,
		"num_hidden_layers": s.Layers, "num_attention_heads": s.Heads, "num_key_value_heads": s.KVHeads, "head_dim": s.HeadDim,
		"max_position_embeddings": 64, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": s.Tied,
		"hidden_act": "silu", "initializer_range": 0.2}
	if s.Scores {
		maps.Copy(c, map[string]any{"architectures": []string{"ForSequenceClassification"},
			"id2label": map[string]string{"0": "LABEL_0"}, "pad_token_id": nil})
	}
	if s.Type == modeltest.Patchwork.ModelType {
		if s.Groups > 0 {
			c["groups"] = s.Groups
		}
		return modeltest.PatchworkConfig(c)
	}
	if s.Type == hybrid {
		maps.Copy(c, map[string]any{"head_dim": 4 * s.HeadDim, "full_attention_interval": 2,
			"linear_num_key_heads": s.KVHeads, "linear_num_value_heads": s.Heads,
			"linear_key_head_dim": s.HeadDim + 1, "linear_value_head_dim": s.HeadDim})
	}
	if s.Type == latent {
		maps.Copy(c, map[string]any{"num_key_value_heads": s.Heads, "qk_rope_head_dim": s.HeadDim,
			"qk_nope_head_dim": 3, "v_head_dim": 1 + s.HeadDim, "kv_lora_rank": 5, "q_lora_rank": 2 + s.KVHeads,
			"first_k_dense_replace": 99, "moe_intermediate_size": 4, "n_routed_experts": 16, "rope_interleave": true})
	}
	text, err := json.Marshal(c)
	if err != nil {
		panic(err)
	}
	return text
}

// subject builds the model with random weights and as many random steps.
func (s shape) subject(t errorer, steps int) *subject {
	t.Helper()
	c, err := hf.ParseConfig("config.json", s.config())
	if err != nil {
		t.Fatal(err)
	}
	m, err := model.New(c, append(s.families, modeltest.Patchwork, modeltest.Piecework)...)
	if err != nil {
		t.Fatal(err)
	}
	s.freeze(t, m)
	for i, b := range m.Blocks {
		if n := b.Constants(); n > 0 {
			if m.Constants == nil {
				m.Constants = make([][]float32, len(m.Blocks))
			}
			for e := range n {
				m.Constants[i] = append(m.Constants[i], b.InitialConstant()+0.01*float32(e%3)-0.003*float32(i))
			}
		}
	}
	sub := &subject{model: m, numerics: f32, outputs: plan.Outputs{Gradients: s.Gradients}}
	if s.BF16 {
		sub.numerics = bf16
		if s.Split24 {
			sub.numerics.Master = optim.Split24
		}
	}
	if s.Moments8 {
		sub.numerics.Moments = max(s.Codes, optim.Dynamic8)
	}
	n := &sub.numerics
	n.SequenceLen, n.MicroBatch, n.MicroBatches, n.HeadChunk = s.SequenceLen, s.MicroBatch, s.Micro, s.HeadChunk
	n.BlockChunk, n.PieceElems, n.Cohorts = s.BlockChunk, int64(s.PieceElems), s.Cohorts
	if s.Narrow {
		n.Exchange = tensor.BF16
	}
	sub.fill = func(p *model.Part, v model.Values) error { m.InitPart(7, p, v); return nil }
	clip := 0.5
	if s.Unclipped {
		clip = 0
	}
	rnd := rand.New(rand.NewPCG(1, 2))
	for i := range steps {
		sub.batches = append(sub.batches, s.batch(rnd))
		sub.updates = append(sub.updates, stream.Update{Step: i + 1, LR: 1e-2, MaxGradNorm: clip,
			AdamW:  optim.AdamW{Beta1: 0.9, Beta2: 0.99, Eps: 1e-8, WeightDecay: 0.1},
			Groups: []optim.Rates{{LR: 5e-3}, {LR: 2e-2, WeightDecay: 0.2}}})
	}
	sub.eval = s.batch(rnd)
	return sub
}

// freeze takes tensors out of training, and puts them into groups.
func (s shape) freeze(t errorer, m *model.Model) {
	t.Helper()
	for i := range m.Parts {
		p := &m.Parts[i]
		frozen := func(string) bool { return false }
		all := func(string) bool { return true }
		switch {
		case p.Kind == model.Embed && s.FrozenEmbed, p.Kind == model.HeadTile && s.FrozenHead,
			p.Kind == model.Block && p.Layer <= s.FrozenBlocks:
			frozen = all
		case p.Kind == model.Block && p.Layer == len(m.Blocks) && s.FrozenFFN:
			frozen = func(name string) bool {
				return name == "gate.weight" || name == "up.weight" || name == "down.weight"
			}
		}
		var fields []tensor.Field
		for _, f := range p.Layout.Fields {
			f.Field.Trainable = !frozen(f.Name)
			if n := len(fields); s.Grouped && f.Glued {
				f.Field.ParamGroup = fields[n-1].ParamGroup
			} else if s.Grouped {
				f.Field.ParamGroup = (p.Layer + n) % 3
			}
			fields = append(fields, f.Field)
		}
		l, err := tensor.NewLayout(fields...)
		if err != nil {
			t.Fatal(fmt.Sprintf("%s: %v", p.Name, err))
		}
		p.Layout = l
	}
}

// batch draws tokens in documents of any length; some positions do not count.
func (s shape) batch(rnd *rand.Rand) *stream.Batch {
	b := &stream.Batch{}
	for range s.Micro {
		rows := s.SequenceLen * s.MicroBatch
		mb := batch.New(rows)
		for start := 0; start < rows; {
			end := min(start+1+rnd.IntN(s.SequenceLen), start/s.SequenceLen*s.SequenceLen+s.SequenceLen)
			tokens := make([]int32, end-start)
			for i := range tokens {
				tokens[i] = int32(rnd.IntN(s.Vocab))
				target := int32(rnd.IntN(s.Vocab))
				if rnd.IntN(4) != 0 {
					mb.Targets[start+i] = target
					b.Targets++
				}
			}
			mb.SetDocument(start, tokens)
			start = end
		}
		b.Micro = append(b.Micro, mb)
	}
	return b
}
