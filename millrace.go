package millrace

import (
	"context"
	"io"
	"os"
	"path/filepath"

	"github.com/millrace/millrace/hf/hub"
	"github.com/millrace/millrace/hostmem"
	"github.com/millrace/millrace/internal/below"
	"github.com/millrace/millrace/internal/blame"
	"github.com/millrace/millrace/internal/console"
	"github.com/millrace/millrace/internal/drivers"
	"github.com/millrace/millrace/internal/terminal"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train"
	"github.com/millrace/millrace/train/verbs"
)

// Config reads a run file and key=value settings, which come after it, as "millrace train FILE --set KEY=VALUE" does,
// and checks them. With an empty path there are only the settings. docs/run-yaml.md has the keys. All keys except model
// and datasets have defaults. Only Train needs datasets, and Open needs no model if OpenOptions.ModelConfig has one.
func Config(path string, settings ...string) (*runfile.Config, error) {
	c, err := runfile.ReadWithoutModel(path, settings)
	return c, blame.BadRequest(err)
}

// PlanOptions say what to plan for. The zero value is valid.
type PlanOptions = verbs.PlanOptions

// Plan plans what Train would run: will it fit, how fast is it, and what limits it? It reads the config.json of the
// model, and no weights and no data. If nothing fits, the error names the number to change.
func Plan(ctx context.Context, c *runfile.Config, o PlanOptions) (*verbs.Planned, error) {
	o.Env = envOr(o.Env)
	return verbs.PlanFor(ctx, c, o)
}

// PlanShape is Plan for a published shape, such as "qwen2.5-14b", on a named machine with its drive. It reads no file.
// The settings have the names and values of Config's. [github.com/millrace/millrace/plan.Shapes] and
// [github.com/millrace/millrace/plan.Machines] list the names, and so does the error of an unknown
// one.
func PlanShape(ctx context.Context, shape, machine string, settings ...string) (*verbs.Planned, error) {
	c, err := runfile.ReadToPlan(shape, true, settings)
	if err != nil {
		return nil, blame.BadRequest(err)
	}
	return Plan(ctx, c, PlanOptions{Shape: shape, Machine: machine})
}

// TrainOptions add to a configuration what Train needs. The zero value is valid.
type TrainOptions = train.Options

// Train trains a model as a configuration says, from the latest checkpoint in the output directory if there is one.
// Checkpoints, metrics and the trained model are in the output directory after that. When Env.Stop is closed, the run
// ends after its step with a checkpoint and [train.ErrInterrupted]. When the context ends, steps that were not saved
// are lost.
func Train(ctx context.Context, c *runfile.Config, o TrainOptions) (*train.Summary, error) {
	o.Env = envOr(o.Env)
	return train.Train(ctx, c, o)
}

// OpenOptions add to a configuration what Open needs. The zero value is valid.
type OpenOptions = train.OpenOptions

// Open opens a run for a loop that the caller writes, with the verbs Step, Eval, Logits and Save: see [train.Run]. The
// model, sizes, precision, memory, device and data are those of the configuration, planned as for Train.
func Open(ctx context.Context, c *runfile.Config, o OpenOptions) (*train.Run, error) {
	o.Env = envOr(o.Env)
	return train.Open(ctx, c, o)
}

func envOr(env *train.Env) *train.Env {
	if env == nil {
		return NewEnv(nil)
	}
	return env
}

// NewEnv returns the surroundings that the program gives to a run: devices by the names of run.yaml, a cache in
// $MILLRACE_CACHE or else in the user's cache directory, and messages and progress for people, written to log; nil
// means silence. A caller may change fields before the first use: Open for a device of its own, FS, Families. All runs
// with one Env count their memory together. From then on the process follows links out of a model's directory as the
// environment says: into the hub's cache, and all of them with MILLRACE_FOLLOW_LINKS=1.
func NewEnv(log io.Writer) *train.Env {
	if log == nil {
		log = io.Discard
	}
	below.Allow(below.Links{HubCache: hub.CacheFromEnv(), Anywhere: os.Getenv(below.FollowVariable) == "1"})
	env := &train.Env{Accounts: hostmem.New(), Progress: log, Terminal: terminal.CanDraw(log), CacheDir: cacheDir(),
		MemoryGrows: os.Getenv("MILLRACE_MEMORY_GROWS") == "1"}
	out := console.Out{Writer: log, Terminal: env.Terminal}
	env.Open = drivers.Opener{Note: func(line string) { out.Say("%s", line) },
		OnCPU: func(why error) { out.Say("computing on the CPU: %s", console.OneLine(why)) }}.Open
	return env
}

// cacheDir returns the directory of token caches and of the machine file; empty if there is no place for them.
func cacheDir() string {
	if dir := os.Getenv("MILLRACE_CACHE"); dir != "" {
		return dir
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "millrace")
}
