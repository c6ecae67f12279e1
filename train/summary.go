package train

import (
	"encoding/json"
	"math"

	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/trace"
)

// Summary has the numbers of a run at its end.
type Summary struct {
	Steps        int   `json:"steps"`                        // done, in all
	ResumedAfter int   `json:"resumed_after_step,omitempty"` // the sums below are of the steps since
	Tokens       int64 `json:"tokens"`                       // real positions
	TargetTokens int64 `json:"target_tokens"`                // those that counted in the loss
	// FirstLoss and LastLoss are of the first and the last step with such tokens, as they were: NaN or infinite, null
	// in JSON, where they were not finite.
	FirstLoss float64 `json:"first_loss"`
	LastLoss  float64 `json:"last_loss"`
	// Trend is that of the training loss over the steps of this process; nil for fewer than 30.
	Trend      *LossTrend `json:"trend,omitempty"`
	EvalBefore *float64   `json:"eval_loss_before,omitempty"`
	EvalAfter  *float64   `json:"eval_loss_after,omitempty"`
	// Rewards are those of a policy's answers over the steps of this process; nil for another run.
	Rewards *RewardTrend `json:"rewards,omitempty"`
	// RolloutSec is the time that a loop of reinforcement learning took to sample answers and to have them judged.
	RolloutSec float64 `json:"rollout_sec,omitempty"`
	// RolloutBytes and TrainBytes are the most resident memory of the process that such a loop saw in each phase: when
	// answers and steps ended.
	RolloutBytes int64 `json:"rollout_resident_bytes,omitempty"`
	TrainBytes   int64 `json:"train_resident_bytes,omitempty"`
	// Objective has the numbers of the run's objective in the last step, without one entropy and mean_token_accuracy, and
	// those of the two evaluations follow.
	Objective       map[string]float64 `json:"objective,omitempty"`
	ObjectiveBefore map[string]float64 `json:"eval_objective_before,omitempty"`
	ObjectiveAfter  map[string]float64 `json:"eval_objective_after,omitempty"`
	// EvalSetsBefore and EvalSetsAfter are the numbers of evaluation sets by their labels.
	EvalSetsBefore map[string]trace.Numbers `json:"eval_sets_before,omitempty"`
	EvalSetsAfter  map[string]trace.Numbers `json:"eval_sets_after,omitempty"`
	// EvalsNotLower are the evaluations in a row that were not lower, of a run that has ended early for them.
	EvalsNotLower int `json:"evals_not_lower,omitempty"`
	Skipped       int `json:"skipped_updates"`            // their norm was not finite
	Untargeted    int `json:"untargeted_steps,omitempty"` // they had no token that counts in the loss
	// Split, Truncated and Dropped are the documents of an epoch that were longer than a row and were cut into pieces,
	// cut off, or left out. CutTokens are the tokens that the last two cost.
	Split     int   `json:"split_documents,omitempty"`
	Truncated int   `json:"truncated_documents,omitempty"`
	Dropped   int   `json:"dropped_documents,omitempty"`
	CutTokens int64 `json:"cut_tokens,omitempty"`
	// Turns are those of the assistant that count, in the data before the split, EndedTurns of them end with a token at
	// which a generation ends, and OtherPromptTurns follow another prompt than a generation gets. The chat template
	// leaves ThoughtsLeftOut and CallsLeftOut out of turns that others follow.
	Turns            int64          `json:"turns,omitempty"`
	EndedTurns       int64          `json:"ended_turns,omitempty"`
	OtherPromptTurns int64          `json:"other_prompt_turns,omitempty"`
	ThoughtsLeftOut  int64          `json:"thoughts_left_out,omitempty"`
	CallsLeftOut     int64          `json:"calls_left_out,omitempty"`
	Experts          *trace.Experts `json:"experts,omitempty"` // of the last step
	TrainSec         float64        `json:"train_sec"`         // sum over the steps
	TokensPerSec     float64        `json:"tokens_per_sec"`
	Lanes            trace.Lanes    `json:"lanes"`          // busy seconds over the run
	UploadBytes      int64          `json:"upload_bytes"`   // host to device over the run, as the schedule says
	PeakBytes        int64          `json:"peak_rss_bytes"` // resident memory of the process
	PlannedBytes     int64          `json:"planned_bytes"`  // what the plan allowed
	// Model is the directory of the trained model, once the run has ended, and BestModel that of the one with the
	// lowest evaluation loss, with save.best.
	Model      string `json:"model,omitempty"`
	BestModel  string `json:"best_model,omitempty"`
	Checkpoint string `json:"checkpoint,omitempty"` // the latest

	SaveStallSec     float64 `json:"save_stall_sec"` // that steps waited for checkpoints, beyond what was hidden
	StateOnDisk      bool    `json:"state_on_disk,omitempty"`
	DiskReadBytes    int64   `json:"disk_read_bytes"`
	DiskWrittenBytes int64   `json:"disk_written_bytes"` // by the disk tier and by checkpoints
	// DriveWrittenBytes are those that the drive has got which was written most, where state on disk is on several.
	DriveWrittenBytes int64 `json:"drive_written_bytes,omitempty"`
	// Rating is that of the drive, and WrittenShare the part of it that DiskWrittenBytes take, or DriveWrittenBytes.
	trace.Rating
	WrittenShare float64 `json:"written_share"`
	WriteWaitSec float64 `json:"write_wait_sec"` // that the run has paused for memory.max_write_per_day
}

// MarshalJSON writes losses that are not finite as null.
func (s Summary) MarshalJSON() ([]byte, error) {
	type fields Summary
	return json.Marshal(struct {
		FirstLoss *float64 `json:"first_loss"`
		LastLoss  *float64 `json:"last_loss"`
		fields
	}{finite(s.FirstLoss), finite(s.LastLoss), fields(s)})
}

// finite is nil for a number that is not.
func finite(x float64) *float64 {
	if math.IsNaN(x) || math.IsInf(x, 0) {
		return nil
	}
	return &x
}

// finish adds up what the summary has to say of the whole run.
func (t *trainer) finish() {
	t.summary.Steps, t.summary.Skipped, t.summary.Untargeted = t.steps, t.skipped, t.untargeted
	t.summary.Trend, t.summary.Rewards = t.losses.tenths(), t.rewards.ends()
	t.summary.PeakBytes, _ = hostmem.PeakRSS()
	t.summary.SaveStallSec = t.saves.stall.Seconds()
	if t.summary.TrainSec > 0 {
		t.summary.TokensPerSec = float64(t.summary.Tokens) / t.summary.TrainSec
	}
	if t.session.Disk != nil {
		t.summary.StateOnDisk = true
		t.summary.DiskReadBytes = t.session.Disk.Traffic().ReadBytes
	}
	t.summary.DiskWrittenBytes, t.summary.Rating = t.written(), t.plan.Wear.Rating
	onDrive := t.driveWritten()
	if onDrive < t.summary.DiskWrittenBytes {
		t.summary.DriveWrittenBytes = onDrive
	}
	t.summary.WrittenShare = t.summary.ShareOf(onDrive)
}
