package model

// What several families call their norms.
var (
	// normAfterAttention names the norm before the feed-forward, which llama.cpp calls by the mixer in some families.
	normAfterAttention = Names{{Role: "feed_norm.*", HF: "model.layers.{layer}.post_attention_layernorm.*",
		GGUF: "blk.{layer}.post_attention_norm.*"}}

	// resultNorms name the norms of the results of halves.
	resultNorms = Names{
		{Role: "mixer_post_norm.*", HF: "model.layers.{layer}.post_attention_layernorm.*",
			GGUF: "blk.{layer}.post_attention_norm.*"},
		{Role: "feed_post_norm.*", HF: "model.layers.{layer}.post_feedforward_layernorm.*",
			GGUF: "blk.{layer}.post_ffw_norm.*"},
	}

	// postNorms has Qwen's names, and norms of results instead of those of inputs.
	postNorms = qwen.Without("mixer_norm.*", "feed_norm.*").Before("norm.*", resultNorms)
)
