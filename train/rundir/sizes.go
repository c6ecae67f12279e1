package rundir

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"

	"github.com/millrace/millrace/checkpoint"
	"github.com/millrace/millrace/data"
	"github.com/millrace/millrace/optim"
	"github.com/millrace/millrace/plan"
	"github.com/millrace/millrace/runfile"
)

// AdoptCuts makes the sizes that set bits, and what becomes of long documents, those of the checkpoint that a run
// continues from, nil for none. Sizes are those of run.yaml if the steps have another length now. A size that run.yaml
// sets otherwise is an error; overlong is taken over where it is auto, which was split before it could be auto.
func AdoptCuts(c *runfile.Config, from *checkpoint.Checkpoint) error {
	if from == nil {
		return nil
	}
	if c.Overlong == string(data.AutoLong) && !slices.Contains(c.ResumeWith, "overlong") {
		c.Overlong = cmp.Or(from.Manifest.Mathematics["overlong"], string(data.SplitLong))
	}
	if !CutsAs(c, from.Manifest) {
		return nil
	}
	var n plan.Numerics
	if err := json.Unmarshal(from.Manifest.Numerics, &n); err != nil {
		return fmt.Errorf("resume: the checkpoint's numerics are not those of this version of millrace (%w); continue with "+
			"the version that wrote it, or start a new run in another output_dir", err)
	}
	if key, is, was := keepSizes(&c.Numerics, runfile.SizesOf(n), n.Positions()); key != "" {
		return fmt.Errorf("resume: numerics.%s is %d, and %d in the checkpoint; restore it, or start a new run in another "+
			"output_dir", key, is, was)
	}
	return nil
}

// keepSizes makes sizes those that a run has had, whose micro-batches have that many positions: what is larger is cut
// to that. It returns the first key that asks for another size; empty without one.
func keepSizes(now *runfile.Sizes, had runfile.Sizes, positions int) (key string, is, was int) {
	for _, size := range []struct {
		key      string
		now, had *runfile.Auto
		most     int
	}{
		{"micro_batch", &now.MicroBatch, &had.MicroBatch, math.MaxInt},
		{"head_chunk", &now.HeadChunk, &had.HeadChunk, positions},
		{"block_chunk", &now.BlockChunk, &had.BlockChunk, positions},
		{"groups", &now.Groups, &had.Groups, math.MaxInt},
	} {
		if *size.now > 0 && min(int(*size.now), size.most) != int(*size.had) {
			return size.key, int(*size.now), int(*size.had)
		}
		*size.now = *size.had
	}
	return "", 0, 0
}

// CutsAs reports whether steps have the sizes that they had in the run of a checkpoint.
func CutsAs(c *runfile.Config, from *checkpoint.Manifest) bool {
	sizes := SizeSettings(c)
	return from.Mathematics["sequence_len"] == sizes["sequence_len"] &&
		from.Mathematics["batch_tokens"] == sizes["batch_tokens"]
}

// SizeSettings returns the settings that say how steps are cut and in which types they are computed.
func SizeSettings(c *runfile.Config) map[string]string {
	keys := c.Settings(optim.Schedule{}, "")
	maps.DeleteFunc(keys, func(key, _ string) bool {
		return !slices.Contains([]string{"sequence_len", "batch_tokens", "overlong", "precision"}, key)
	})
	return keys
}

// SeedSetting is the seed as checkpoints have it.
func SeedSetting(c *runfile.Config) string { return c.Settings(optim.Schedule{}, "")["seed"] }
