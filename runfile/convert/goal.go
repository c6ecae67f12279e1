package convert

import (
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/millrace/millrace/data"
)

// goal holds the key objective on its way: the aim of a training that is more than the next token.
type goal struct {
	kind  string // its type; empty: the next token
	parts []string
	from  []string // keys of the file
	how   []string
	given map[string]float64 // numbers among the parts

	isRLOO bool // of TRL's two trainers that learn from rewards, the one of RLOO
}

// noRewards is why files with rewards are refused.
const noRewards = "of trainings with rewards convert knows GRPO and RLOO of TRL, and verl's; docs/rl.md says how to " +
	"write others, with objective: {type: policy}"

// olderLayout says how to write pairs of LLaMA-Factory's layout v1, whose files do not say what they train.
const olderLayout = "write a file with stage: rm, of which convert makes objective: {type: reward}"

// goals maps the names of other trainers to the types of objectives.
var goals = map[string]string{"dpo": "dpo", "ipo": "dpo", "kto": "kto", "orpo": "orpo", "cpo": "cpo", "simpo": "simpo",
	"rm": scored, "reward": scored}

// scored is the objective of reward models.
const scored = "reward"

// dataType is the type of the data sets that a goal needs; empty: any of those of the next token.
func (c *conversion) dataType() data.Type {
	switch c.goal.kind {
	case "":
		return ""
	case "kto":
		return data.Binary
	case rewarded:
		return promptsType
	}
	return data.Preference
}

// judgeGoal finds the goal of the file, and refuses those that are no objectives here.
func (c *conversion) judgeGoal() {
	switch c.result.Tool {
	case LLaMAFactory, HFTrainer:
		c.goalByName("stage", "sft", "pt")
		if loss := c.textAt("pref_loss"); c.goal.kind == "dpo" && goals[loss] != "" {
			c.goal.kind = goals[loss]
		}
	case Axolotl:
		if isOn(c.values["reward_model"]) {
			k, _ := c.take("reward_model")
			c.goal.kind, c.goal.from = scored, []string{k}
		} else {
			c.dismiss(withoutKey, c.present("reward_model")...)
		}
		if c.goal.kind == "" || !isOff(c.values["rl"]) {
			c.goalByName("rl")
		}
	case LLaMAFactoryV1:
		// Its trainers are those of texts and of reward models.
		if set := c.textAt("train_dataset"); saysPreferences(set) {
			c.cannot([]string{"train_dataset"}, "train_dataset is %s, by its name preferences, which this layout of "+
				"LLaMA-Factory trains reward models on: %s", shown(set), olderLayout)
		}
	case TRL:
		c.goalOfTRL()
	case Verl:
		c.goal.kind = rewarded
	}
}

// goalByName takes the goal that a key names.
func (c *conversion) goalByName(key string, nextToken ...string) {
	k, v := c.take(key)
	switch text := textOf(v); {
	case k == "" || slices.Contains(nextToken, text):
		c.dismiss(withoutKey, key)
	case goals[text] != "":
		c.goal.kind, c.goal.from = goals[text], []string{k}
	default:
		c.cannot([]string{k}, "%s is %s: %s", k, shown(v), noRewards)
	}
}

// preferenceWords are of data sets with pairs of answers.
var preferenceWords = regexp.MustCompile(
	`(^|[^a-z])(dpo|kto|orpo|rlhf|reward|preferences?|pairwise|ultrafeedback)($|[^a-z])`)

// saysPreferences reports whether the name of a data set says that it has preferences.
func saysPreferences(set string) bool {
	return preferenceWords.MatchString(strings.ToLower(set[strings.LastIndex(set, "/")+1:]))
}

// goalWords are of names of files and directories of TRL's users.
var goalWords = regexp.MustCompile(`(^|[^a-z])(sft|dpo|ipo|kto|orpo|cpo|simpo|rm|reward|ppo|grpo|rloo)($|[^a-z])`)

// Keys that one of TRL's scripts has.
var (
	keysOfSFT = []string{"packing", "packing_strategy", "eval_packing", "dataset_text_field", "assistant_only_loss",
		"completion_only_loss", "neftune_noise_alpha"}
	keysOfDPO = []string{"loss_weights", "ld_alpha", "f_divergence_type", "use_weighting", "discopop_tau", "rpo_alpha",
		"reference_free", "label_smoothing"}
	keysOfPreferences = []string{"beta", "max_prompt_length", "precompute_ref_log_probs", "sync_ref_model"}
)

// Keys and losses that the scripts of GRPO and RLOO alone have.
var (
	keysOfRewards = []string{"reward_funcs", "num_generations", "scale_rewards", "steps_per_generation", "num_iterations",
		"normalize_advantages", "reward_clip_range"}
	lossesOfGRPO = []string{"grpo", "bnpo", "dr_grpo", "dapo", "cispo", "sapo", "luspo", "vespo"}
)

// goalOfTRL tells the goal by keys that one script has, by names of losses, and by words in the names that the file and
// its output have: the command says which script reads the file, and the file does not.
func (c *conversion) goalOfTRL() {
	has := func(keys ...string) bool { return len(c.present(keys...)) > 0 }
	loss := strings.Join(list(c.values["loss_type"]), ",")
	word := c.goalWord()
	switch {
	case has(keysOfRewards...), slices.Contains(lossesOfGRPO, loss), word == "grpo", word == "rloo":
		c.goal.kind = rewarded
		c.goal.isRLOO = word == "rloo" || has("normalize_advantages", "reward_clip_range")
	case loss == "nll" || loss == "chunked_nll" || loss == "dft" || has(keysOfSFT...) && loss == "":
		if loss != "dft" {
			c.dismiss(withoutKey, "loss_type")
		}
	case loss == "alphapo":
		c.cannot([]string{"loss_type"}, "loss_type is alphapo: Millrace has no rewards of this form; it has simpo")
	case has("center_rewards_coefficient"):
		c.goal.kind = scored
	case loss == "simpo" || has("gamma_beta_ratio", "simpo_gamma"):
		c.goal.kind = "simpo"
	case has("cpo_alpha"):
		c.goal.kind = "cpo"
	case loss == "kto" || loss == "apo_zero_unpaired" || has("desirable_weight", "undesirable_weight"):
		c.goal.kind = "kto"
	case goals[word] != "" && (loss == "" || goals[word] != "kto"):
		c.goal.kind = goals[word]
	case loss != "" || has(keysOfDPO...):
		c.goal.kind = "dpo"
	case word == "sft":
	case word != "":
		c.cannot(nil, "the file is for %s, by the name of it or of its output: %s", word, noRewards)
	case has(keysOfPreferences...) || c.trainsOnPreferences():
		c.goal.kind = "dpo"
		c.decide(nil, "objective: TRL's command says what a file is for, and dpo is a guess; orpo, cpo and kto have files "+
			"with the same keys, and sft, which needs no objective, has some of them")
	}
}

// goalWord is the first word about the goal in the names of the file, its output and its directories; empty if there is
// none.
func (c *conversion) goalWord() string {
	names := []string{c.program, filepath.Base(c.name), c.textAt("output_dir"), c.textAt("run_name"),
		c.textAt("hub_model_id")}
	for dir, n := filepath.Dir(c.name), 0; n < 3; n++ {
		names, dir = append(names, filepath.Base(dir)), filepath.Dir(dir)
	}
	for _, name := range names {
		if m := goalWords.FindStringSubmatch(strings.ToLower(name)); m != nil {
			return m[2]
		}
	}
	return ""
}

// trainsOnPreferences reports whether the name of TRL's data set says that it has preferences.
func (c *conversion) trainsOnPreferences() bool { return saysPreferences(c.textAt("dataset_name")) }
