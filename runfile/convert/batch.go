package convert

import (
	"fmt"
	"strings"

	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/plan"
)

// batch is the size of a step, with the length of rows that it is a multiple of.
func (c *conversion) batch() error {
	length, from := int64(0), []string(nil)
	if key, v := c.takeFor("sequence_len"); key != "" {
		var ok bool
		if length, ok = count(v); !ok || length > plan.MaxPositionsPerMicroBatch {
			return fmt.Errorf("%s is %s: it must be a whole number of at most %d", key, shown(v), plan.MaxPositionsPerMicroBatch)
		}
		from = []string{key}
		c.set("sequence_len", numeral(float64(length)), from, "")
	} else {
		length = c.usual.length
		if !c.usual.guessed {
			c.set("sequence_len", numeral(float64(length)), nil, "the file does not say; %s has %d", c.result.Tool, length)
		} else {
			c.set("sequence_len", numeral(float64(length)), nil, "a guess")
			c.decide(nil, "sequence_len: TrainingArguments do not say how long a sequence is")
		}
	}
	c.overlong()
	if key, n := c.wholeBatch(); key != "" {
		if length*c.sides() > mostBatch/n {
			return fmt.Errorf("%s is %d: that makes a step of more than %d tokens", key, n, int64(mostBatch))
		}
		c.pairs(n, key)
		c.set("batch_tokens", numeral(float64(length*c.sides()*n)), append([]string{key}, from...), "%s x %s",
			spelling.Count(int(n), c.unit()), c.positions(length))
		if c.isUnpacked() {
			c.decide(nil, "batch_tokens: rows are packed, so a step has more short examples than before")
		}
		return nil
	}

	how, keys := []string{}, []string{}
	total, documents := length*c.sides(), int64(1)
	for _, f := range []struct {
		what  string
		keys  []string
		usual int64
	}{
		{c.unit(), []string{"per_device_train_batch_size", "micro_batch_size", "train_batch_size", "batch_size"},
			c.usual.perDevice},
		{"accumulated step", []string{"gradient_accumulation_steps"}, 1},
	} {
		n := f.usual
		key, v := c.take(f.keys...)
		if key != "" {
			var ok bool
			if n, ok = count(v); !ok {
				n = f.usual
				c.decide(given(key), "batch_tokens: %s is %s; it is taken as %d", key, shown(v), n)
			}
			keys = append(keys, key)
		}
		how = append(how, spelling.Count(int(n), f.what))
		if total > mostBatch/n {
			return fmt.Errorf("%s is %s: that makes a step of more than %d tokens", key, shown(v), int64(mostBatch))
		}
		total, documents = total*n, documents*n
	}
	c.pairs(documents, keys...)
	c.set("batch_tokens", numeral(float64(total)), append(keys, from...), "%s x %s, on one device",
		strings.Join(how, " x "), c.positions(length))
	decide := "batch_tokens: multiply it by the number of devices that the file was for"
	if c.sides() == 2 {
		decide = "batch_tokens, objective.pairs_per_step: multiply both by the number of devices that the file was for"
	}
	if c.isUnpacked() {
		decide += ". Rows are packed, so a step has more short examples than before"
	}
	c.decide(nil, "%s", decide)
	return nil
}

// sides counts the documents of one thing that the other trainer counts in a batch: a pair has 2.
func (c *conversion) sides() int64 {
	if c.dataType() == data.Preference {
		return 2
	}
	return 1
}

// unit names the things that the other trainer counts in a batch.
func (c *conversion) unit() string {
	if c.sides() == 2 {
		return "pair"
	}
	return "sequence"
}

// positions says how many there are of that.
func (c *conversion) positions(length int64) string {
	if c.sides() == 2 {
		return fmt.Sprintf("2 sides of %d positions", length)
	}
	return fmt.Sprintf("%d positions", length)
}

// pairs bounds the pairs of a step by their number in the file. batch_tokens has room for them at their longest.
func (c *conversion) pairs(n int64, keys ...string) {
	if c.sides() == 2 {
		c.goal.part("pairs_per_step", numeral(float64(n)), keys...)
	}
}

// isUnpacked reports whether a row of the other trainer has one document, and so a batch as many as rows. A step has no
// more pairs than before, packed or not.
func (c *conversion) isUnpacked() bool {
	if c.sides() == 2 {
		return false
	}
	for _, key := range []string{"sample_packing", "packing", "neat_packing"} {
		if isOn(c.values[key]) {
			return false
		}
	}
	if strings.HasPrefix(c.textAt("batching_strategy"), "dynamic") { // which fills a batch up to its number of tokens
		return false
	}
	return c.values["stage"] != "pt" || c.values["packing"] == false
}

// wholeBatch is the number of sequences of a step where the file gives that for all devices and accumulated steps.
func (c *conversion) wholeBatch() (key string, n int64) {
	keys := []string{"global_batch_size", "effective_batch_size"}
	if c.result.Tool == Axolotl {
		keys = append(keys, "batch_size")
	}
	key, v := c.take(keys...)
	n, ok := count(v)
	if !ok || n == 0 {
		return "", 0
	}
	c.dismiss(key+" has the whole batch", "per_device_train_batch_size", "micro_batch_size", "gradient_accumulation_steps")
	return key, n
}

// mostBatch is the most tokens of a step.
const mostBatch = 1 << 30

// overlong keeps what the other trainer does with documents that are longer than a row. By their sources:
//
//   - LLaMA-Factory shortens prompts and responses (infer_seqlen of data/processor/), and cuts the joined texts of
//     stage pt into rows, unless packing is false; its v1 layout cuts the end off (pad_and_truncate of v1/core/utils/).
//   - Axolotl drops them (handle_long_seq_in_dataset of utils/data/utils.py), except texts, of which it makes several
//     rows (prompt_strategies/completion.py).
//   - TRL cuts the end off, and makes several rows with the packing strategies bfd_split and wrapped
//     (trainer/sft_config.py). Its reward trainer drops pairs with a side that is too long (trainer/reward_trainer.py).
//   - run_clm.py of transformers cuts the joined texts into rows.
func (c *conversion) overlong() {
	key, v := c.takeFor("overlong")
	strategy := c.textAt("packing_strategy")
	as := fmt.Sprintf("as %s does", c.result.Tool)
	switch {
	case textOf(v) == "drop" || textOf(v) == "truncate":
		c.set("overlong", textOf(v), []string{key}, "")
	case c.result.Tool == LLaMAFactory && c.values["stage"] == "pt" && c.values["packing"] != false,
		c.result.Tool == Axolotl && c.onlyTexts():
		c.set("overlong", "split", nil, "%s", as)
	case c.result.Tool == TRL && isOn(c.values["packing"]) && (strategy == "bfd_split" || strategy == "wrapped"):
		c.set("overlong", "split", []string{"packing_strategy"}, "%s", as)
	case c.result.Tool == Axolotl, c.result.Tool == TRL && c.goal.kind == scored:
		c.set("overlong", "drop", nil, "%s", as)
	case c.result.Tool == HFTrainer && c.values["block_size"] != nil:
		c.set("overlong", "split", nil, "as run_clm.py does")
	case c.result.Tool == HFTrainer:
		c.set("overlong", "truncate", nil, "a guess")
	default:
		c.set("overlong", "truncate", nil, "%s", as)
	}
	if text := textOf(v); text == "raise" {
		c.decide([]string{key}, "overlong: the file stops at a document that is longer than a row; here it is dropped, and "+
			"millrace preview counts them")
	}
}

// onlyTexts reports whether all data sets of the run have texts without a prompt.
func (c *conversion) onlyTexts() bool {
	return !strings.Contains(strings.ReplaceAll(c.setting("datasets").Value, "type: text", ""), "type: ")
}

func (c *conversion) length() {
	key, v := c.takeFor("max_steps")
	steps, ok := count(v)
	epochs, e := c.takeFor("epochs")
	switch passes, isNumber := number(e); {
	case ok:
		c.set("max_steps", numeral(float64(steps)), []string{key}, "")
		c.dismiss(key+" is set", given(epochs)...)
	case isNumber && passes > 0:
		c.set("epochs", numeral(passes), []string{epochs}, "")
	default:
		c.set("epochs", c.usual.epochs, nil, "the file does not say; %s has %s", c.result.Tool, c.usual.epochs)
	}
}
