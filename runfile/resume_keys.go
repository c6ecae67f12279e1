package runfile

import "slices"

// The keys of a run file that decide which documents a run reads, and how it cuts them into steps.
var (
	documentKeys = []string{"datasets", "chat_template", "train_on_prompt", "train_on_last_turn", "val_size"}
	cutKeys      = []string{"sequence_len", "batch_tokens", "overlong"}
	lengthKeys   = []string{"max_steps", "epochs"}
)

// SettledBy lists, for each setting that a checkpoint names and that may change, the keys of a run file that change it.
// Messages name the first key. Settings without an entry cannot change: the model, its precision and the seed.
var SettledBy = map[string][]string{
	"learning_rate": {"learning_rate"}, "min_learning_rate": {"min_learning_rate"}, "lr_scheduler": {"lr_scheduler"},
	"weight_decay": {"weight_decay"},
	"adam_betas":   {"adam_betas"}, "adam_eps": {"adam_eps"}, "max_grad_norm": {"max_grad_norm"},
	"sequence_len": {"sequence_len"}, "batch_tokens": {"batch_tokens"}, "overlong": {"overlong"}, "data": documentKeys,
	"steps":        slices.Concat(lengthKeys, documentKeys, cutKeys),
	"warmup_steps": slices.Concat([]string{"warmup_steps", "warmup_ratio"}, lengthKeys, documentKeys, cutKeys),
}

// changeable are the keys that resume_with may list.
func changeable() []string {
	var keys []string
	for _, by := range SettledBy {
		keys = append(keys, by...)
	}
	keys = append(keys, "eval")
	slices.Sort(keys)
	return slices.Compact(keys)
}
