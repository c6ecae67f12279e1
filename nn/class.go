package nn

import "fmt"

// Class is a kind of operations that have a rate in common: what one of them takes follows from its FLOPs or from its
// bytes. An operation belongs to the class of what bounds it, so that no rate is that of other work.
type Class uint8

// The classes. Those of products and of sequences are counted in FLOPs, the others in bytes that are read or written.
const (
	OfProducts            Class = iota // matrix products
	OfAttention                        // forward; by the width of heads
	OfAttentionGrad                    // its gradient
	OfCappedAttention                  // with a soft cap
	OfCappedAttentionGrad              // its gradient
	OfCacheAttention                   // of next tokens over a cache
	OfDelta                            // gated delta nets, forward
	OfDeltaGrad                        // their gradient
	OfDeltaSteps                       // their next tokens
	OfExperts                          // products of experts; by the rows that an expert has
	OfExpertGrads                      // gradients of experts' weights; by these rows
	OfElements                         // what is done element by element
	OfMoves                            // copies, casts, and what products read of weights and add to gradients
	OfNormGrads                        // gradients of norms
	OfUnitGrads                        // gradients of gated units
	OfConv                             // convolutions over rows
	OfConvGrad                         // their gradients
	OfLoss                             // sums of exponentials of logits, and the gradient of the loss
	OfUpdates8                         // AdamW with moments in 8 bits, on a device
	Classes               = iota
)

// classNames holds the names in machine files and plans, and the ones for people.
var classNames = [Classes]struct{ key, text string }{
	OfProducts:            {"products", "matrix products"},
	OfAttention:           {"attention", "attention"},
	OfAttentionGrad:       {"attention_grad", "the gradient of attention"},
	OfCappedAttention:     {"capped_attention", "attention with a soft cap"},
	OfCappedAttentionGrad: {"capped_attention_grad", "the gradient of attention with a soft cap"},
	OfCacheAttention:      {"cache_attention", "attention of next tokens over a cache"},
	OfDelta:               {"gated_delta", "gated delta nets"},
	OfDeltaGrad:           {"gated_delta_grad", "the gradient of gated delta nets"},
	OfDeltaSteps:          {"gated_delta_steps", "next tokens of gated delta nets"},
	OfExperts:             {"expert_products", "products of experts"},
	OfExpertGrads:         {"expert_grads", "gradients of experts' weights"},
	OfElements:            {"elements", "element-wise operations"},
	OfMoves:               {"moves", "copies and casts"},
	OfNormGrads:           {"norm_grads", "gradients of norms"},
	OfUnitGrads:           {"unit_grads", "gradients of gated units"},
	OfConv:                {"convolution", "convolutions"},
	OfConvGrad:            {"convolution_grad", "the gradient of convolutions"},
	OfLoss:                {"loss", "sums and gradients of the loss"},
	OfUpdates8:            {"adamw8", "updates on the device with moments in 8 bits"},
}

// String names the class for people.
func (c Class) String() string { return classNames[c].text }

// Key is the class's name in machine files.
func (c Class) Key() string { return classNames[c].key }

// MarshalText gives the class its name in machine files.
func (c Class) MarshalText() ([]byte, error) { return []byte(c.Key()), nil }

// UnmarshalText reads that name.
func (c *Class) UnmarshalText(text []byte) error {
	for i, name := range classNames {
		if name.key == string(text) {
			*c = Class(i)
			return nil
		}
	}
	return fmt.Errorf("operation %q is unknown", text)
}

// IsFLOPs reports whether the class is counted in FLOPs; else it is in bytes.
func (c Class) IsFLOPs() bool { return c < OfElements }

// IsOfHeads reports whether the rate depends on the width of heads.
func (c Class) IsOfHeads() bool { return c >= OfAttention && c <= OfDeltaSteps }

// IsOfExperts reports whether the rate depends on the rows that an expert has.
func (c Class) IsOfExperts() bool { return c == OfExperts || c == OfExpertGrads }
