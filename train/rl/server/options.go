package server

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/spelling"
	"github.com/millrace/millrace/runfile"
	"github.com/millrace/millrace/train/rl/sampler"
)

// Servers that can be asked.
const (
	SGLang = runfile.EngineSGLang
	VLLM   = runfile.EngineVLLM
)

// Options say which server samples, and what of.
type Options struct {
	Engine   string // SGLang or VLLM
	URL      string // where the server listens, such as http://127.0.0.1:30000
	TokenEnv string // the environment variable that has the server's key; "": it has none
	AtOnce   int    // answers that are under way at once; 0: 256
	Sleeps   bool   // the server shares the run's device: it gives the memory back while the run trains

	Vocab     int    // ids that answers may have: those below
	ModelType string // model_type of config.json, which the server's model has to have; "": any

	// LogProbs has the trainer compute the log-probabilities of ids[from:], each given all ids before it, in nats. Load
	// compares them with the server's, after ProbeIDs. nil: it does not.
	LogProbs func(ctx context.Context, ids []int32, from int) ([]float32, error)
	ProbeIDs []int32 // a short prompt
	// ProbeOnce has Load compare them at the first hand-over alone: the trainer's pass is as long as that of a step.
	ProbeOnce bool

	Limits Limits                           // zero values: those of Usual
	Warn   func(format string, args ...any) // a line for people, once for each thing; nil: they are lost
	Loaded func(Handover)                   // is told of each hand-over that has succeeded; may be nil
}

// Limits bound what requests take.
type Limits struct {
	Question time.Duration   // what the server says of itself, and small orders
	Answer   time.Duration   // a text, with its wait for a place
	Load     time.Duration   // a hand-over
	Waits    []time.Duration // before each repetition of a request that the server has not begun
}

// Usual are the limits of runs.
var Usual = Limits{Question: time.Minute, Answer: time.Hour, Load: time.Hour,
	Waits: []time.Duration{time.Second, 2 * time.Second, 4 * time.Second, 8 * time.Second, 16 * time.Second}}

// usualAtOnce is the number of answers under way that fills the batch of a server; more wait there.
const usualAtOnce = 256

// Open connects to a server, and fails unless it answers, generates, and has the model that is asked for.
func Open(ctx context.Context, o Options) (sampler.Server, error) {
	c, err := connect(&o)
	if err != nil {
		return nil, err
	}
	s := &server{conn: c, o: o, warned: map[string]bool{}}
	switch o.Engine {
	case SGLang:
		s.engine = &sglang{conn: c}
	case VLLM:
		s.engine = &vllm{conn: c}
	}
	if s.is, err = s.engine.describe(ctx); err != nil {
		return nil, err
	}
	if err := s.is.check(c.name, &o); err != nil {
		return nil, err
	}
	return s, nil
}

// connect checks the options and fills in those that are left out.
func connect(o *Options) (*conn, error) {
	engines := []string{SGLang, VLLM}
	if !slices.Contains(engines, o.Engine) {
		return nil, fmt.Errorf("engine is %q%s: use %s", o.Engine, spelling.Question(o.Engine, engines),
			spelling.Or(engines))
	}
	u, err := url.Parse(o.URL)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || u.User != nil || u.RawQuery != "" ||
		u.Fragment != "" {
		return nil, fmt.Errorf("url is %q: write the server's address, such as http://127.0.0.1:30000, without a name, a "+
			"password or a question mark", o.URL)
	}
	u.Path = strings.TrimRight(u.Path, "/")
	token := ""
	if o.TokenEnv != "" {
		if token = strings.TrimSpace(os.Getenv(o.TokenEnv)); token == "" {
			return nil, fmt.Errorf("token_env is %s, and the environment has no such variable: set it to the server's key",
				o.TokenEnv)
		}
		if strings.ContainsAny(token, "\r\n") {
			return nil, fmt.Errorf("the variable %s has several lines: it must be the server's key alone", o.TokenEnv)
		}
	}
	if o.AtOnce == 0 {
		o.AtOnce = usualAtOnce
	}
	if o.AtOnce < 0 || o.Vocab < 1 {
		return nil, fmt.Errorf("%d answers at once of a vocabulary of %d: both must be at least 1", o.AtOnce, o.Vocab)
	}
	for _, l := range []struct{ is, or *time.Duration }{{&o.Limits.Question, &Usual.Question},
		{&o.Limits.Answer, &Usual.Answer}, {&o.Limits.Load, &Usual.Load}} {
		if *l.is == 0 {
			*l.is = *l.or
		}
	}
	if o.Limits.Waits == nil {
		o.Limits.Waits = Usual.Waits
	}
	if o.Warn == nil {
		o.Warn = func(string, ...any) {}
	}
	return newConn(o, u, token), nil
}

// description has what a server says of itself. Zero values are not known.
type description struct {
	version   string // of the program
	dtype     string // of weights, with how they are quantized
	model     string // by which requests name it
	modelType string
	vocab     int
	positions int    // of prompt and answer together, at most
	logProbs  string // vLLM's logprobs_mode
}

// check fails unless the server has the model that is asked for.
func (d *description) check(name string, o *Options) error {
	switch t := d.modelType; {
	case t != "" && o.ModelType != "" && !strings.HasPrefix(t, o.ModelType) && !strings.HasPrefix(o.ModelType, t):
		// The text model of one that sees, such as gemma3_text, has a longer name.
		return fmt.Errorf("%s has a model of kind %s, and the run trains one of kind %s: start the server with the run's "+
			"model", name, t, o.ModelType)
	case d.vocab != 0 && d.vocab < o.Vocab:
		return fmt.Errorf("%s has a model of %d tokens, and that of the run has %d: start the server with the run's model",
			name, d.vocab, o.Vocab)
	}
	return nil
}
